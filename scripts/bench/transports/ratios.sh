#!/bin/sh
# Ratios of the transports of one relay, udp : dtls : ws : wss, in interleaved rounds: processor time
# of the relay per datagram, latency and loss. The relay has processor 0 and the generator
# processor 1; the first round is left out. It writes out/transports and prints the comparisons.
#
#   FERRY     the binary; default bin/ferry
#   ROUNDS    of all transports; default 5
#   RATE      datagrams per second; default 10000
#   DURATION  of a run; default 5s
#   FAMILY    ipv4 or ipv6; default ipv4
set -eu
FERRY=${FERRY:-bin/ferry} ROUNDS=${ROUNDS:-5} RATE=${RATE:-10000} DURATION=${DURATION:-5s} FAMILY=${FAMILY:-ipv4}
out=out/transports
mkdir -p "$out"
rm -f "$out"/*
relays=
trap 'kill $relays 2>/dev/null || :' EXIT INT TERM
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost \
	-addext 'subjectAltName=IP:127.0.0.1,DNS:relay.example' -keyout "$out/key.pem" -out "$out/cert.pem" 2>"$out/openssl.log"

# start NAME [options]: a relay on loopback of both families; its process and URL in NAME.pid and NAME.url.
start() {
	name=$1
	shift
	taskset -c 0 "$FERRY" dev --workers 1 --udp '127.0.0.1:0,[::1]:0' --http '[::]:0' --admin 127.0.0.1:0 --log-level error "$@" >"$out/$name.log" 2>&1 &
	pid=$!
	relays="$relays $pid"
	until grep -q '^ready ' "$out/$name.log"; do
		kill -0 $pid || { cat "$out/$name.log" >&2; exit 1; }
		sleep 0.1
	done
	echo $pid >"$out/$name.pid"
	sed -n 's|^ready .*http=\([a-z]*\)://\[::\]:\([0-9]*\).*|\1://127.0.0.1:\2|p' "$out/$name.log" >"$out/$name.url"
}
start plain
start secure --tls-cert "$out/cert.pem" --tls-key "$out/key.pem" --advertise-name relay.example

# measure TRANSPORT FILE
measure() {
	relay=plain
	more=
	if [ "$1" = wss ]; then
		relay=secure
		port=$(sed 's/.*://' "$out/secure.url")
		host=127.0.0.1
		[ "$FAMILY" = ipv4 ] || host='[::1]'
		more="--ca $out/cert.pem --relay $host:$port"
	fi
	# shellcheck disable=SC2086
	taskset -c 1 "$FERRY" bench --transport "$1" --family "$FAMILY" --api "$(cat $out/$relay.url)" --server-pid "$(cat $out/$relay.pid)" \
		--name "$1" --rate "$RATE" --duration "$DURATION" --pin 1 --quiet --json "$2" $more >"$out/last.txt" || [ $? -eq 2 ] # without a verdict
	head -n 1 "$out/last.txt"
}
transports='udp dtls ws wss'
for round in $(seq 0 "$ROUNDS"); do
	for transport in $transports; do
		file="$out/$transport.$round.json"
		[ "$round" -gt 0 ] || file="$out/first.json"
		measure "$transport" "$file"
	done
done
for transport in dtls ws wss; do
	files=
	for round in $(seq 1 "$ROUNDS"); do
		files="$files $out/udp.$round.json $out/$transport.$round.json"
	done
	echo
	# shellcheck disable=SC2086
	"$FERRY" bench compare --rounds $files
done
