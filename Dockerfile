# Service and agent in one image: `frd` and `frd-agent` are on the path; the default command prints help.
# Build it from a clean checkout: docker build -t frd .

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# The tested versions; with py-spy the agent reads stacks where it has the right to trace. The extra is
# for replicas of a cluster.
RUN python -m venv /opt/frd/venv \
    && /opt/frd/venv/bin/pip install --no-cache-dir --constraint requirements/demo.txt \
        "$(echo /wheels/*.whl)[cluster]" py-spy

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/frd/venv /opt/frd/venv
# Only the tap, for pods whose image has no frd.
COPY agents/frd_agent/tap.py /opt/frd/tap/tap.py
COPY agents/frd_agent/_site /opt/frd/tap/_site
ENV PATH=/opt/frd/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9373 9374 9375
CMD ["frd", "--help"]
