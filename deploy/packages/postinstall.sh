#!/bin/sh
set -e
if ! getent group pdnode >/dev/null; then
	groupadd --system pdnode
fi
if ! getent passwd pdnode >/dev/null; then
	useradd --system --gid pdnode --home-dir /var/lib/pdnode --shell /usr/sbin/nologin pdnode
fi
chgrp pdnode /etc/pdnode/pdnode.yaml
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart pdnode.service
fi
