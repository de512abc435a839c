// Tables that can be sorted by a click on a heading and searched; without this script they are whole as they are.
// A cell counts by its first number and the unit of that; a date or a range begins with digits too and is a text.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, min: 60, h: 3600 };
const number = (text) => {
  const parts = text.replace(/,/g, "").replace("−", "-").match(/^(?:< )?([-+]?\d[\d.]*)(?: (\S+)| ?%|$)/);
  return parts ? parts[1] * (units[parts[2]] ?? 1) : NaN;
};
for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const value = (row, column) => row.cells[column].textContent.trim();
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        const apart = Number.isNaN(number(x)) || Number.isNaN(number(y)) ? x.localeCompare(y) : number(x) - number(y);
        return down ? -apart : apart;
      };
      body.append(...[...rows].sort(order));
    });
  });
  if (rows.length > 8) {
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "Search";
    search.setAttribute("aria-label", "Search this table");
    search.addEventListener("input", () => {
      const wanted = search.value.trim().toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
    table.closest(".frame").before(search);
  }
}
