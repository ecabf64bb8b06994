#!/bin/sh
set -e
# "remove" on Debian, 0 on RPM systems: not an upgrade.
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now pdnode.service
	fi
	;;
esac
