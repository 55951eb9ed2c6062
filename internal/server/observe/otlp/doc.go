// Package otlp implements package trace with OpenTelemetry: it samples calls and sends
// their spans to a collector, by OTLP over HTTP with protobuf bodies.
//
// Spans never delay a call. A span that has ended goes into a queue of 2,048 spans, and is
// dropped and counted if that is full. One goroutine, [Tracer.Run], sends them in batches
// every 2 s by OpenTelemetry's exporter. It repeats a batch for up to 10 s if the collector
// asks for it, and then drops and counts the batch.
package otlp
