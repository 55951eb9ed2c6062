module github.com/ferryrelay/ferry/scripts/bench/webtransport

go 1.26.0

require (
	github.com/coder/websocket v1.8.15
	github.com/ferryrelay/ferry v0.0.0
	github.com/quic-go/quic-go v0.65.0
	github.com/quic-go/webtransport-go v0.13.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/dunglas/httpsfv v1.1.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/ferryrelay/ferry => ../../..

// webtransport-go v0.13.0 does not compile with v0.65.0, which the examples use.
replace github.com/quic-go/quic-go => github.com/quic-go/quic-go v0.64.1
