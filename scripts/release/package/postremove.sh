#!/bin/sh
# After a removal. Settings and the identity of the relay stay, but for "purge" by dpkg.
set -e
if [ "$1" = purge ]; then
	rm -rf /etc/ferry /var/lib/ferry /var/lib/private/ferry
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
