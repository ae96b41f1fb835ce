# tna-onnx in a container that is not root:
#   docker build --target cpu -t tna-onnx .         docker build --target gpu -t tna-onnx:gpu .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" tna-onnx calibrate model.onnx calib.npz
# Versions are those that the tests ran with (.ci/constraints.txt), with onnxruntime-gpu and torch for CUDA 13.0, which
# needs driver 580. The target gpu has not run on a GPU yet.
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /source
RUN python -m venv /venv
COPY .ci/constraints.txt constraints.txt
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml README.md LICENSE ./
COPY tna_onnx tna_onnx

FROM build AS build-cpu
RUN /venv/bin/pip install '.[cpu,images,tables,text]'

FROM build AS build-gpu
RUN /venv/bin/pip install '.[gpu,images,tables,text]'

FROM ${PYTHON} AS run
RUN useradd --uid 10001 --create-home tna && mkdir /data && chown tna /data
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /data
ENTRYPOINT ["tna-onnx"]
CMD ["--help"]

FROM run AS gpu
# What NVIDIA's container runtime reads; CUDA and cuDNN come with the wheels.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-gpu /venv /venv
USER 10001:10001

# The last stage is what `docker build` makes without --target.
FROM run AS cpu
COPY --from=build-cpu /venv /venv
USER 10001:10001
