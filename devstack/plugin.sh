#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# DevStack plugin of cyborg_gpu_driver. stack.sh, unstack.sh and clean.sh
# source it with a mode and a phase:
# https://docs.openstack.org/devstack/latest/plugins.html

# shellcheck source=devstack/lib/cyborg-gpu
source "$CYBORG_GPU_DIR/devstack/lib/cyborg-gpu"
# shellcheck source=devstack/lib/cyborg-gpu-settings
source "$CYBORG_GPU_DIR/devstack/lib/cyborg-gpu-settings"

case "$1/${2:-}" in
    stack/pre-install)
        if is_service_enabled cyborg-agent cyborg-api; then
            check_cyborg_gpu_settings
        fi
        ;;
    stack/install)
        if is_service_enabled cyborg-agent; then
            echo_summary "Installing cyborg_gpu_driver"
            install_cyborg_gpu
        fi
        ;;
    stack/post-config)
        if is_service_enabled cyborg-api; then
            configure_cyborg_gpu_api
        fi
        if is_service_enabled placement-api; then
            configure_cyborg_gpu_placement
        fi
        if is_service_enabled cyborg-agent; then
            echo_summary "Configuring cyborg_gpu_driver"
            configure_cyborg_gpu_agent
            # Only on a machine that has the library.
            if [[ -n "$CYBORG_GPU_STRATEGY" ]] \
                    && is_service_enabled n-sch; then
                configure_cyborg_gpu_scheduler
            fi
        fi
        ;;
    stack/extra)
        # By now the files contain all of local.conf, and Cyborg is running.
        if is_service_enabled cyborg-agent; then
            check_cyborg_gpu_offers
        fi
        if is_service_enabled cyborg-api && is_service_enabled n-api; then
            create_cyborg_gpu_resources
        fi
        ;;
    stack/test-config)
        if is_service_enabled cyborg-agent; then
            report_cyborg_gpu_problems
        fi
        ;;
    # Services may have been disabled since stack.sh. Remove everything anyway.
    unstack/*)
        unconfigure_cyborg_gpu
        ;;
    clean/*)
        unconfigure_cyborg_gpu
        cleanup_cyborg_gpu
        ;;
esac
