// Package otlp implements package trace with OpenTelemetry: it samples calls and sends
// their spans to a collector, by OTLP over HTTP with protobuf bodies.
//
// Spans never delay a call. A span that has ended goes into a queue of 2,048 spans, and is
// dropped and counted if that is full. One goroutine, [Tracer.Run], sends them in batches
// every 2 s. It repeats a batch for up to 10 s if the collector is not reachable or asks
// for it, and then drops and counts the batch.
//
// The exporter is a client of its own for package otlptrace, since otlptracehttp and its
// message types depend on grpc. The body is a TracesData message, whose encoding is that of
// an ExportTraceServiceRequest.
package otlp
