#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# What DevStack and Cyborg's plugin have for a plugin, as far as ours uses it.
# It does to files below $WORK what DevStack does to the machine, and writes
# each call down.
# usage: devstack.sh PLUGIN MODE [PHASE...]
#
# The plugin reads what is set here and not used:
# shellcheck disable=SC2034

# record WORD... - a line of $WORK/record, with the words apart.
function record {
    local IFS=$'\x1f'
    echo "$*" >> "$WORK/record"
}

# DevStack's functions
# --------------------

function define_plugin {
    :
}

function plugin_requires {
    :
}

function get_python_exec_prefix {
    echo "$BIN_DIR"
}

function echo_summary {
    echo "summary: $*"
}

# Exits with what failed before, as DevStack's.
function die {
    local code=$?
    shift
    echo "die: $*" >&2
    exit "$((code ? code : 1))"
}

# Returns what the command before it did, as DevStack's: not after "||".
function warn {
    local code=$?
    echo "warning: $2" >&2
    return "$code"
}

function is_service_enabled {
    local service
    for service in "$@"; do
        if [[ ",$ENABLED_SERVICES," == *",$service,"* ]]; then
            return 0
        fi
    done
    return 1
}

function ini {
    if [[ -n "${DEVSTACK_CLONE:-}" ]]; then
        local -A names=([get]=iniget [set]=iniset [add]=iniadd_literal
            [delete]=inidelete)
        "devstack_${names[$1]}" "${@:2}"
        return
    fi
    "$PYTHON" -I -S "$(dirname "${BASH_SOURCE[0]}")/ini.py" "$@"
}

function iniget {
    ini get "$@"
}

function iniset {
    [[ "$1" == -sudo ]] && shift
    local value
    # Unquoted, as DevStack has it.
    # shellcheck disable=SC2086,SC2116
    value=$(echo $4)
    record iniset "$1" "$2" "$3" "$value"
    ini set "$1" "$2" "$3" "$value"
}

function iniadd_literal {
    [[ "$1" == -sudo ]] && shift
    record "${FUNCNAME[0]}" "$@"
    ini add "$@"
}

function inidelete {
    record "${FUNCNAME[0]}" "$@"
    ini delete "$@"
}

function setup_develop {
    record "${FUNCNAME[0]}" "$@"
}

function pip_uninstall {
    record "${FUNCNAME[0]}" "$@"
}

function wait_for_service {
    record "${FUNCNAME[0]}" "$@"
    [[ -z "${API_IS_DOWN:-}" ]]
}

# The functions of a clone of DevStack, if there is one, do the same work.
if [[ -n "${DEVSTACK_CLONE:-}" ]]; then
    eval "$(bash -c 'source "$0/functions-common"
        source "$0/inc/ini-config"
        declare -f ini_has_option is_service_enabled
        for name in iniget iniset iniadd_literal inidelete; do
            echo "devstack_$(declare -f "$name")"
        done' "$DEVSTACK_CLONE")"
fi

# Programs
# --------

function sudo {
    record "${FUNCNAME[0]}" "$@"
    "$@"
}

# As run by sudo, which has written it down.
function systemctl {
    :
}

# Keeps device profiles and flavors by name.
function openstack {
    if [[ "$1 $2" != "--os-cloud devstack-admin" ]]; then
        echo "openstack: no credentials" >&2
        return 1
    fi
    shift 2
    case "$*" in
        "accelerator device profile list -f value -c name")
            cat "$WORK/profiles"
            ;;
        "accelerator device profile create "*)
            record openstack "$@"
            echo "$5" >> "$WORK/profiles"
            ;;
        "flavor show "*)
            grep -Fqx -- "$3" "$WORK/flavors"
            ;;
        "flavor create "*)
            record openstack "$@"
            echo "${!#}" >> "$WORK/flavors"
            ;;
        "flavor set "*)
            record openstack "$@"
            grep -Fqx -- "${!#}" "$WORK/flavors"
            ;;
        *)
            echo "openstack: not a command: $*" >&2
            return 2
            ;;
    esac
}

# Cyborg's plugin
# ---------------

function cyborg_settings {
    CYBORG_CONF=$WORK/etc/cyborg.conf
    PLACEMENT_CONF=$WORK/etc/placement.conf
    NOVA_CONF=$WORK/etc/nova.conf
    CYBORG_STATE_PATH=$WORK/cyborg
    CYBORG_API_URL=http://192.0.2.1/accelerator
    KEYSTONE_SERVICE_URI=http://192.0.2.1/identity
    ADMIN_PASSWORD=secret
    REGION_NAME=RegionOne
    CYBORG_ENABLED_DRIVERS=${CYBORG_ENABLED_DRIVERS:-fake_driver}
}

function cyborg_plugin {
    function configure_cyborg {
        ini set "$CYBORG_CONF" DEFAULT debug True
        if is_service_enabled cyborg-api; then
            ini set "$CYBORG_CONF" keystone_authtoken username cyborg
        fi
        if is_service_enabled cyborg-agent; then
            ini set "$CYBORG_CONF" agent enabled_drivers \
                "$CYBORG_ENABLED_DRIVERS"
        fi
    }
    case "$1/$2" in
        stack/post-config)
            configure_cyborg
            ;;
        clean/*)
            rm -f "$CYBORG_CONF"
            ;;
    esac
}

# What stack.sh, unstack.sh and clean.sh do
# -----------------------------------------

PLUGIN=$1
MODE=$2
shift 2
cd "$WORK/top" || exit
mkdir -p "$WORK/etc" "$WORK/systemd"
touch "$WORK/record" "$WORK/profiles" "$WORK/flavors"

STACK_USER=$(id -un)
SYSTEMCTL="sudo systemctl"
SYSTEMD_DIR=$WORK/systemd
SERVICE_TIMEOUT=60
HOSTNAME=devstack
# shellcheck disable=SC1091
source "$WORK/localrc"
VIRT_DRIVER=${VIRT_DRIVER:-libvirt}
NOVA_CPU_CONF=$WORK/etc/nova-cpu.conf
NOVA_FAKE_CONF=$WORK/etc/nova-fake.conf

set -o errexit
# shellcheck disable=SC1091
source "$PLUGIN/override-defaults"
echo "NOVA_USE_SERVICE_TOKEN=$NOVA_USE_SERVICE_TOKEN"
cyborg_settings
# shellcheck disable=SC1091
source "$PLUGIN/settings"
if [[ "$TRACE" == xtrace ]]; then
    set -o xtrace
fi
for phase in "${@:-}"; do
    record phase "$MODE" "$phase"
    if [[ -z "${WITHOUT_CYBORG:-}" ]]; then
        cyborg_plugin "$MODE" "$phase"
    fi
    if [[ -z "${ONLY_CYBORG:-}" ]]; then
        # shellcheck disable=SC1091
        source "$PLUGIN/plugin.sh" "$MODE" ${phase:+"$phase"}
    fi
done
set +o | grep 'xtrace$'
eval "$CALL"
