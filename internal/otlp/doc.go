// Package otlp implements package trace with OpenTelemetry: it samples calls and sends
// their spans to a collector, by OTLP over HTTP with protobuf bodies.
//
// Spans never delay a call. A span that has ended goes into a queue of 2,048 spans, and is
// dropped and counted if that is full. One goroutine, [Tracer.Run], sends them in batches
// every 2 s. It repeats a batch for up to 10 s if the collector is not reachable or asks
// for it, and then drops and counts the batch.
//
// The package encodes the few fields of OTLP that it needs by itself. OpenTelemetry's
// exporter otlptracehttp and its generated messages depend on grpc and on the reflection of
// protobuf, which would make the program several megabytes larger.
package otlp
