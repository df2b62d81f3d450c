# syntax=docker/dockerfile:1
# Gemwright on the CPU. The images are large by torch, and small by everything else:
#   docker build --tag gemwright .
#   docker run --rm --volume gemwright-models:/var/cache/gemwright gemwright run ggml-org/gemma-3-1b-it-GGUF:Q4_K_M "Hello"
#
# EXTRAS=demo packs the default model too, whose weights are under the Gemma terms.
# TORCH_INDEX_URL names an index of torch built for the CPU, which pytorch.org gives under "Get started"; left out, pip
# takes the torch of its own index, which for x86-64 brings CUDA, several gigabytes.

FROM python:3.11-slim-bookworm AS build
ARG EXTRAS=torch
ARG TORCH_INDEX_URL=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /usr/lib/gemwright
# torch on its own and first: it changes least, and its layer is the one worth keeping.
COPY constraints.txt .
RUN /usr/lib/gemwright/bin/pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} --constraint constraints.txt torch
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY csrc csrc
COPY gemwright gemwright
# An image without the kernels would be no use: what stops them from being built is an error here.
RUN PIP_CONSTRAINT=constraints.txt GEMWRIGHT_REQUIRE_KERNELS=1 /usr/lib/gemwright/bin/pip install ".[$EXTRAS]"

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="gemwright" \
      org.opencontainers.image.description="Run Gemma models exactly" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --home-dir /var/lib/gemwright --create-home gemwright \
    && install --directory --owner gemwright --group gemwright /var/cache/gemwright
COPY --from=build /usr/lib/gemwright /usr/lib/gemwright
# Models lie in one place, both the hub's and the joined default model.
ENV PATH="/usr/lib/gemwright/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/var/cache/gemwright/huggingface \
    GEMWRIGHT_CACHE=/var/cache/gemwright/joined
USER 10001:10001
WORKDIR /var/lib/gemwright
VOLUME /var/cache/gemwright
ENTRYPOINT ["gemwright"]
CMD ["--help"]
