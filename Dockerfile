# Service and agent in one image: `frd` and `frd-agent` are on the path; the default command prints help.
# Build it from a clean checkout: docker build -t frd .

# Tags of images move. If you build for others, name the digest: --build-arg BASE=IMAGE@sha256:DIGEST.
ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE} AS build
WORKDIR /src
# First what frd depends on, which a change of the source leaves as it is: the tested versions, also of
# the extra for replicas of a cluster, from files whose hashes requirements/ has.
COPY requirements requirements
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement requirements/build.txt \
    && pip wheel --no-cache-dir --no-deps --require-hashes --no-build-isolation --wheel-dir /needed \
        --requirement requirements/service.txt --requirement requirements/cluster.txt \
    && python -m venv --without-pip /opt/frd/venv \
    && pip --python /opt/frd/venv/bin/python install --no-cache-dir --no-deps --no-index /needed/*.whl
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
# Only the programs' interpreter is that of the virtual environment. All users may read the tap, whatever
# the checkout's modes are.
RUN pip --python /opt/frd/venv/bin/python install --no-cache-dir --no-deps --no-index --prefix /frd /wheels/*.whl \
    && chmod -R a+rX agents/frd_agent

FROM ${BASE}
# Nothing here installs a package.
RUN pip uninstall --yes pip setuptools wheel && rm -r /usr/local/lib/python3.*/ensurepip
COPY --from=build /opt/frd/venv /opt/frd/venv
COPY --from=build /frd /opt/frd/venv
# Only the tap, for pods whose image has no frd.
COPY --from=build /src/agents/frd_agent/tap.py /opt/frd/tap/tap.py
COPY --from=build /src/agents/frd_agent/_site /opt/frd/tap/_site
ENV PATH=/opt/frd/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9373 9374 9375
CMD ["frd", "--help"]
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title=frd \
    org.opencontainers.image.description="Names the first cause when distributed PyTorch training hangs, while it hangs" \
    org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.source=https://frd.example/frd.git \
    org.opencontainers.image.version=$VERSION
