// Reads CSV and TSV as `recurra predict` does (recurra.data.formats), so that both classify the same rows.
const SEPARATORS = [",", ";", "\t", "|"];

// Records of cells, the header first. `lenient` takes text behind a closing quotation mark, and none that closes.
function recordsOf(text, separator, { quoted = true, lenient = false } = {}) {
  const records = [];
  let record = [];
  let cell = "";
  // Of a cell: "before" its first character, "plain", "inside" quotation marks, or "behind" them.
  let state = "before";
  for (let i = 0; i <= text.length; i++) {
    const letter = i < text.length ? text[i] : "\n";
    if (state === "inside" && i < text.length) {
      if (letter === '"') state = "behind"; else cell += letter;
    } else if (letter === '"' && state === "behind") {
      cell += letter;
      state = "inside";
    } else if (letter === '"' && state === "before" && quoted) {
      state = "inside";
    } else if (letter === separator) {
      record.push(cell);
      [cell, state] = ["", "before"];
    } else if (letter === "\n") {
      if (state === "inside" && !lenient) throw new Error("The file ends inside a quotation mark.");
      if (record.length || state !== "before") record.push(cell);
      const width = records.length && records[0].length;
      if (record.length > 1 || (record.length && (width === 1 || !record[0] || record[0].trim()))) records.push(record);
      [record, cell, state] = [[], "", "before"];
    } else if (letter === "\r") {
      if (/[^\r\n]/.test(text[i + 1] ?? "")) throw new Error("Record " + (records.length + 1)
        + " has a carriage return without a line feed, outside quotation marks: save the file with line feeds.");
    } else {
      if (state === "behind" && !lenient) throw new Error("Record " + (records.length + 1)
        + ' has text behind a closing quotation mark: write "" for a quotation mark inside.');
      cell += letter;
      state = "plain";
    }
  }
  return records;
}

// The usual separator, unless only another one finds the column "text".
function separatorOf(header, usual) {
  const all = [usual, ...SEPARATORS];
  const names = (one) => (recordsOf(header.toLowerCase(), one, { lenient: true })[0] || []).map((name) => name.trim());
  return all.find((one) => names(one).includes("text"))
    || (names(usual).length > 1 ? usual : all.reduce((best, one) => (names(one).length > names(best).length ? one : best)));
}

// Whether quotation marks are characters: every line has the header's cells, and quoting would not close, or join lines.
function quotesAreText(text, separator) {
  const cells = text.split("\n").filter((line) => /[^ \r]/.test(line)).map((line) => line.split(separator).length);
  if (!text.includes('"') || cells.some((count) => count !== cells[0])) return false;
  try {
    return recordsOf(text, separator)
      .some((record) => record.length !== cells[0] || record.some((cell) => cell.includes("\n")));
  } catch { return true; }
}

// Records of a file by its content and name, each with as many cells as the header, or an error.
function readTable(text, name) {
  if (!/\.(csv|tsv|tab)$/i.test(name)) throw new Error(name + " is no .csv or .tsv: save it so, or use recurra predict.");
  const from = text.lastIndexOf("\n", text.search(/\S/)) + 1;
  const first = text.slice(from).split("\n", 1)[0];
  const declared = /^"?sep=(.)"?\s*$/i.exec(first);
  if (declared) text = text.slice(from + first.length + 1);
  const separator = declared ? declared[1] : separatorOf(first, /\.csv$/i.test(name) ? "," : "\t");
  if (text.includes("\0")) throw new Error("The file holds NUL characters, as text in UTF-16 does: save it as UTF-8.");
  const records = recordsOf(text, separator, { quoted: !(separator === "\t" && quotesAreText(text, separator)) });
  if (records.length) records[0] = records[0].map((name) => name.trim());
  if (records.length < 2) throw new Error("The file has no rows under its header.");
  const odd = records.findIndex((record) => record.length !== records[0].length);
  if (odd > 0) throw new Error("Record " + (odd + 1) + " has " + records[odd].length + " cells and the header " + records[0].length + ".");
  return records;
}
