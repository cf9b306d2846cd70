# The service and the agent in one image: `frd` and `frd-agent` are on the path, nothing runs by
# itself. Built from a clean checkout: docker build -t frd .

FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# At the versions that are tested; py-spy reads stacks where the agent may trace.
RUN python -m venv /opt/frd/venv \
    && /opt/frd/venv/bin/pip install --no-cache-dir --constraint requirements/demo.txt \
        /wheels/*.whl py-spy

FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/frd/venv /opt/frd/venv
# The tap alone, for pods whose own image has no frd.
COPY agents/frd_agent/tap.py /opt/frd/tap/tap.py
COPY agents/frd_agent/_site /opt/frd/tap/_site
ENV PATH=/opt/frd/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 9373 9374 9375
CMD ["frd", "--help"]
