# The trainer's image: what runs in the pods of a job. Targets: cpu (the default, last) and cuda. The target controller is the
# image of the controller, without torch; runtime is the launcher alone, for images of others.
#
#   docker build --target cpu --tag ddp-trainer:0.1.0 .
#   docker build --target cuda --tag ddp-trainer:0.1.0-cuda .
#   docker build --target controller --tag ddp-controller:0.1.0 .
#   docker build --target runtime --tag ddp-runtime:0.1.0 .
#
# Layers in order of size and stability: system, torch, other dependencies, our code, so a change of our code ships only
# kilobytes. Each layer holds only what its stage added, so nothing is stored twice.
#
# Releases name the base by digest: --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:...; `make release-check` refuses a tagged
# commit without one. The default is a tag, because the digest changes with each build of the base.
#
# hadolint does not see that PIP_CACHE_DIR is a mount, and reports the cache as a part of the layer.
# hadolint global ignore=DL3042
# Versions of Debian's packages follow the digest of the base. Mirrors remove a pinned version with the next fix.
# hadolint global ignore=DL3008
ARG PYTHON_IMAGE=python:3.11-slim

# Settings of every stage: pip runs without prompts, with a mounted cache.
FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1 PIP_CACHE_DIR=/var/cache/pip

# Only packages in locks/ are installed, by digest, the build's tools included.
FROM base AS wheel
WORKDIR /src
COPY locks/build.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip pip install --require-hashes --requirement /locks/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY ddp_collectives ddp_collectives
COPY ddp_preflight ddp_preflight
COPY ddp_report ddp_report
COPY ddp_workloads ddp_workloads
COPY trainer trainer
COPY kubectl_plugin kubectl_plugin
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /dist .

# --- cpu: wheels without CUDA have a tenth of the size; PyTorch's installation page lists their index. ---
FROM base AS torch-cpu
ARG TORCH_INDEX=
COPY locks/torch-cpu.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip \
    python -m venv --without-pip /opt/ddp \
 && { pip --python /opt/ddp/bin/python install --no-deps --require-hashes ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} \
        --requirement /locks/torch-cpu.txt \
      || { echo "target cpu: pip found no wheel of torch without CUDA whose digest is in locks/torch-cpu.txt; set an index that has one, from PyTorch's installation page: --build-arg TORCH_INDEX=URL" >&2; exit 1; }; }

FROM torch-cpu AS dependencies-cpu
COPY locks/trainer.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip \
    touch /before && mkdir /added \
 && pip --python /opt/ddp/bin/python install --no-deps --require-hashes --requirement /locks/trainer.txt \
 && pip --python /opt/ddp/bin/python check \
 && find /opt/ddp -cnewer /before ! -type d -exec cp --archive --parents --target-directory=/added {} +

# --- cuda: PyPI's wheels include the CUDA runtime, so the base needs no CUDA, and the node only its driver. ---
FROM base AS torch-cuda
COPY locks/torch-cuda.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip \
    python -m venv --without-pip /opt/ddp \
 && pip --python /opt/ddp/bin/python install --no-deps --require-hashes --requirement /locks/torch-cuda.txt

FROM torch-cuda AS dependencies-cuda
COPY locks/trainer.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip \
    touch /before && mkdir /added \
 && pip --python /opt/ddp/bin/python install --no-deps --require-hashes --requirement /locks/trainer.txt \
 && pip --python /opt/ddp/bin/python check \
 && find /opt/ddp -cnewer /before ! -type d -exec cp --archive --parents --target-directory=/added {} +

# Our code, without kubectl_ddp, ddp_report and ddp_controller, which pods of jobs do not need.
FROM base AS project
COPY --from=wheel /dist /dist
RUN python -m venv --without-pip /opt/ddp && touch /before && mkdir /added \
 && pip --python /opt/ddp/bin/python install --no-deps --no-cache-dir /dist/*.whl \
 && rm -r /opt/ddp/lib/python3*/site-packages/kubectl_ddp /opt/ddp/lib/python3*/site-packages/ddp_report \
        /opt/ddp/lib/python3*/site-packages/ddp_controller /opt/ddp/bin/kubectl* \
 && find /opt/ddp -cnewer /before ! -type d -exec cp --archive --parents --target-directory=/added {} +

# --- Base of the shipped images: no pip, a numeric user, works with a read-only root file system. ---
FROM base AS shipped
RUN python -m pip uninstall --yes --quiet setuptools wheel pip \
 && rm -f /etc/pip.conf /usr/local/bin/pip* \
 && groupadd --gid 65532 ddp \
 && useradd --uid 65532 --gid 65532 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin ddp
ENV PATH=/opt/ddp/bin:${PATH} \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/.cache \
    TORCHINDUCTOR_CACHE_DIR=/tmp/.cache/inductor \
    TRITON_CACHE_DIR=/tmp/.cache/triton
ARG PYTHON_IMAGE
LABEL org.opencontainers.image.title="ddp-trainer" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.description="Elastic, observed PyTorch training: launcher, metrics and reference trainer" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
WORKDIR /tmp
STOPSIGNAL SIGTERM
# The launcher is PID 1: it forwards signals and reaps orphans. Kubernetes ignores HEALTHCHECK, so there is none.
ENTRYPOINT ["ddp-launch"]
CMD ["--help"]

# Triton needs gcc and Python's headers, which the base has in /usr/local/include; Inductor needs g++ for CPU kernels. NCCL
# loads libibverbs and its providers by dlopen when NCCL_NET is IB.
FROM shipped AS cuda
USER 0:0
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        g++ gcc ibverbs-providers libc6-dev libibverbs1 librdmacm1 \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
USER 65532:65532
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=torch-cuda /opt/ddp /opt/ddp
COPY --from=dependencies-cuda /added/opt/ddp /opt/ddp
COPY --from=project /added/opt/ddp /opt/ddp

# --- controller: the plugin without torch. ---
FROM base AS dependencies-controller
COPY locks/plugin.txt /locks/
RUN --mount=type=cache,target=/var/cache/pip \
    python -m venv --without-pip /opt/ddp \
 && pip --python /opt/ddp/bin/python install --no-deps --require-hashes --requirement /locks/plugin.txt
COPY --from=wheel /dist /dist
RUN pip --python /opt/ddp/bin/python install --no-deps --no-cache-dir /dist/*.whl

FROM shipped AS controller
LABEL org.opencontainers.image.title="ddp-controller" \
      org.opencontainers.image.description="Creates the objects of DDPJobs, moves pods before their node is drained, and resizes elastic jobs"
COPY --from=dependencies-controller /opt/ddp /opt/ddp
ENTRYPOINT ["python", "-m", "ddp_controller"]
CMD []

# --- runtime: the launcher for images without it, and without an interpreter. Nodes mount the image as a volume; where they
# cannot, an init container copies it, with the cp of the base and its libraries. ---
FROM base AS runtime-files
COPY locks/trainer.txt /locks/
COPY --from=project /added/opt/ddp /opt/ddp
RUN --mount=type=cache,target=/var/cache/pip \
    sed -n -e '/^nvidia-ml-py==/,/[^\\]$/p' -e '/^prometheus-client==/,/[^\\]$/p' /locks/trainer.txt >/locks/runtime.txt \
 && mkdir -p /runtime/copy && mv /opt/ddp/lib/python3*/site-packages/ddp_preflight /opt/ddp/lib/python3*/site-packages/ddp_trainer /opt/ddp/lib/python3*/site-packages/ddp_workloads /runtime/ \
 && pip install --no-deps --require-hashes --requirement /locks/runtime.txt --target /runtime/ddp_trainer/vendor \
 && mv /opt/ddp/lib/python3*/site-packages/kubectl_ddp-*.dist-info /runtime/ddp_trainer/vendor \
 && find /runtime -name __pycache__ -prune -exec rm -r {} + \
 && python -m compileall -q --invalidation-mode unchecked-hash -s /runtime -p /var/run/ddp-runtime /runtime/ddp_preflight /runtime/ddp_trainer /runtime/ddp_workloads \
 && cp /runtime/ddp_trainer/runtime_start.py /runtime/__main__.py \
 && cp --dereference "$(command -v cp)" $(ldd "$(command -v cp)" | grep --only-matching '/[^ ]*') /runtime/copy \
 && mv /runtime/copy/ld*.so* /runtime/copy/ld.so

FROM scratch AS runtime
LABEL org.opencontainers.image.title="ddp-runtime" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.description="Launcher of kubectl ddp for images without it" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=runtime-files /runtime /
USER 65532:65532

FROM shipped AS cpu
COPY --from=torch-cpu /opt/ddp /opt/ddp
COPY --from=dependencies-cpu /added/opt/ddp /opt/ddp
COPY --from=project /added/opt/ddp /opt/ddp
