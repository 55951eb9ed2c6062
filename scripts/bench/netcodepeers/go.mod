module github.com/ferryrelay/ferry/scripts/bench/netcodepeers

go 1.26.0

replace github.com/ferryrelay/ferry => ../../..

require (
	github.com/ferryrelay/ferry v0.0.0
	golang.org/x/sys v0.49.0
)

require golang.org/x/net v0.62.0 // indirect
