#!/bin/sh
# Measures the profiles of bench/traffic/profiles from captures of games over a relay on
# loopback, and writes them. Needs dumpcap (Debian: wireshark-common) and the right to capture
# on lo, and about a minute. As root, relay and games run with real-time priority, so that other
# processes do not change their ticks; otherwise use a quiet machine, and compare the rates with the ticks.
set -eu
cd "$(dirname "$0")/../../.."
out=bench/traffic/profiles
dir=$(mktemp -d)
relay= dumpcap= first=
! chrt -r 1 true 2>/dev/null || first="chrt -r 1"
trap 'kill $relay $dumpcap 2>/dev/null || true; rm -rf "$dir"' EXIT
go build -o "$dir/ferry" ./cmd/ferry
go build -o "$dir/movement" ./examples/movement
api=http://127.0.0.1:27911

$first "$dir/ferry" dev --udp 127.0.0.1:27911 --http 127.0.0.1:27911 --admin 127.0.0.1:27912 --log-level error >"$dir/log" 2>&1 &
relay=$!
until "$dir/ferry" ctl nodes --admin http://127.0.0.1:27912 >/dev/null 2>&1; do
	kill -0 $relay || { cat "$dir/log"; exit 1; }
	sleep 0.1
done

# measure NAME GAME COMMAND ...: captures what the command sends, and writes the profile.
measure() {
	name=$1 game=$2
	shift 2
	# From the relay's socket on, Linux may join datagrams of one flow (UDP_SEGMENT): those to the relay are as they were sent.
	dumpcap -q -i lo -f 'udp port 27911' -w "$dir/$name.pcapng" 2>"$dir/log" &
	dumpcap=$!
	until [ -s "$dir/$name.pcapng" ]; do
		kill -0 $dumpcap || { cat "$dir/log"; exit 1; }
		sleep 0.1
	done
	$first "$@" >"$dir/log" || { cat "$dir/log"; exit 1; }
	kill $dumpcap
	wait $dumpcap || true
	"$dir/ferry" bench traffic "$dir/$name.pcapng" >"$dir/$name.yaml"
	{
		echo "# $game"
		echo "# Measured by scripts/bench/traffic/measure.sh at commit $(git rev-parse --short HEAD):"
		echo "#   $(basename "$1") $(shift; echo "$@")"
		echo "# Sizes are those of the content of RELAY messages; below 24 bytes they count as 24."
		cat "$dir/$name.yaml"
	} >"$out/$name.yaml"
	echo "$out/$name.yaml"
}

measure movement-20p-30hz "examples/movement: 20 players, 30 ticks a second" \
	"$dir/movement" -api $api -players 20 -rate 30 -inputs 400
measure movement-2p-60hz "examples/movement: 2 players, 60 ticks a second" \
	"$dir/movement" -api $api -players 2 -rate 60 -inputs 900
measure netcode-8p-20hz "client/netcode: 8 players, 20 ticks a second, snapshots of 3,000 bytes in fragments" \
	"$dir/ferry" bench --quiet --api $api --shape netcode --matches 1 --players 8 --tick 20 --snapshot 3000 --duration 10s
