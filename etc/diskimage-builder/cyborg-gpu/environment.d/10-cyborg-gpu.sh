# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0

# Sourced by diskimage-builder before any other hook. README.rst describes
# the variables.
export DIB_CYBORG_GPU_IMAGE=${DIB_CYBORG_GPU_IMAGE:-tenant}
export DIB_CYBORG_GPU_SOURCE=${DIB_CYBORG_GPU_SOURCE:-}
export DIB_CYBORG_GPU_LAYOUT=${DIB_CYBORG_GPU_LAYOUT:-}
export DIB_CYBORG_GPU_PIP_OPTIONS=${DIB_CYBORG_GPU_PIP_OPTIONS:-}
case "$DIB_CYBORG_GPU_IMAGE" in
    tenant)
        _venv=/opt/cyborg-gpu
        ;;
    ramdisk)
        # The environment of the element ironic-python-agent-ramdisk. The
        # agent finds the hardware manager and the collector there.
        _venv=/opt/ironic-python-agent
        ;;
    *)
        echo "DIB_CYBORG_GPU_IMAGE=$DIB_CYBORG_GPU_IMAGE: expected tenant" \
            "or ramdisk" >&2
        exit 1
        ;;
esac
export DIB_CYBORG_GPU_VENV=${DIB_CYBORG_GPU_VENV:-$_venv}
unset _venv
