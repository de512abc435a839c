# A server of exports on a CPU.
#
#     docker build --tag recurra .                          ONNX exports; neither torch nor transformers
#     docker build --tag recurra-torch --build-arg ENGINE=torch --build-arg TORCH_INDEX=... .     runs and safetensors exports too
#
# How to run it: docs/how-to/containers.md.
ARG PYTHON=3.11-slim-bookworm
ARG ENGINE=onnx

FROM python:${PYTHON} AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY src src
RUN python -m pip install --require-hashes --no-deps --requirement requirements/locked/build.txt \
    && python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && python -m venv --without-pip /opt/recurra

FROM wheel AS install-onnx
RUN python -m pip --python /opt/recurra/bin/python install \
        --require-hashes --no-deps --requirement requirements/locked/serve.txt \
    && python -m pip --python /opt/recurra/bin/python install --no-deps /wheel/*.whl

# PyTorch's own index has builds without CUDA, which are a tenth of the size: give its address as TORCH_INDEX.
FROM wheel AS install-torch
ARG TORCH_INDEX=
RUN if [ -n "${TORCH_INDEX}" ]; then \
        python -m pip --python /opt/recurra/bin/python install --require-hashes --no-deps \
            --index-url "${TORCH_INDEX}" --requirement requirements/locked/torch-cpu.txt; \
    else \
        python -m pip --python /opt/recurra/bin/python install --require-hashes --no-deps \
            --requirement requirements/locked/torch.txt --requirement requirements/locked/cuda.txt; \
    fi \
    && python -m pip --python /opt/recurra/bin/python install \
        --require-hashes --no-deps --requirement requirements/locked/serve-torch.txt \
    && python -m pip --python /opt/recurra/bin/python install --no-deps /wheel/*.whl

# hadolint ignore=DL3006
FROM install-${ENGINE} AS installed

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="recurra" \
      org.opencontainers.image.description="Text classification by Transformers that reuse their layers" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=installed /opt/recurra /opt/recurra
ENV PATH=/opt/recurra/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
# A number: a cluster that forbids root can tell that it is none.
USER 10001:10001
WORKDIR /exports
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=2)"]
ENTRYPOINT ["recurra"]
CMD ["serve", "/exports/model", "--host", "0.0.0.0", "--port", "8000"]
