#!/bin/sh
# Before a removal: "remove" by dpkg, 0 by rpm. Nothing before an update.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now ferry-serve.service ferry-relay.service ferry-api.service
	fi
	;;
esac
