#!/bin/sh
# After an installation or update, by dpkg ("configure") or rpm (a number).
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers ferry.conf
elif ! getent group ferry >/dev/null; then
	groupadd --system ferry
fi
if [ ! -e /etc/ferry/token ]; then
	# The token of a backend that ferry.yaml names: 48 hexadecimal digits.
	(umask 077; od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >/etc/ferry/token; echo >>/etc/ferry/token)
fi
# The units have a user for each start, which reads this directory as a member of the group.
chgrp ferry /etc/ferry /etc/ferry/ferry.yaml /etc/ferry/token
chmod 0640 /etc/ferry/token
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# After an update: a restart ends no match over UDP or DTLS. A ferry-relay would drain for
	# an hour first: restart it by hand, when the fleet has room.
	systemctl try-restart ferry-serve.service ferry-api.service
fi
