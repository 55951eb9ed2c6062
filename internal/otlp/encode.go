package otlp

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields of OTLP messages that are sent, see opentelemetry/proto in
// https://github.com/open-telemetry/opentelemetry-proto. Tests decode the messages with the
// generated types.
const (
	requestResourceSpans = 1

	resourceSpansResource   = 1
	resourceSpansScopeSpans = 2
	resourceAttributes      = 1
	scopeSpansScope         = 1
	scopeSpansSpans         = 2
	scopeName               = 1

	spanTraceID    = 1
	spanID         = 2
	spanParentID   = 4
	spanName       = 5
	spanKind       = 6
	spanStart      = 7
	spanEnd        = 8
	spanAttributes = 9
	spanStatus     = 15
	spanFlags      = 16

	statusCode  = 3
	statusError = 2

	keyValueKey   = 1
	keyValueValue = 2
	valueString   = 1
	valueInt      = 3
)

// encode returns an ExportTraceServiceRequest with spans of one process.
func encode(spans []sdk.ReadOnlySpan) []byte {
	scope := appendBytes(nil, scopeSpansScope, appendString(nil, scopeName, scopeNameText))
	var buffer []byte
	for _, s := range spans {
		buffer = appendSpan(buffer[:0], s)
		scope = appendBytes(scope, scopeSpansSpans, buffer)
	}
	resource := appendAttributes(nil, resourceAttributes, spans[0].Resource().Attributes())
	all := appendBytes(nil, resourceSpansResource, resource)
	return appendBytes(nil, requestResourceSpans, appendBytes(all, resourceSpansScopeSpans, scope))
}

func appendSpan(b []byte, s sdk.ReadOnlySpan) []byte {
	own, parent := s.SpanContext(), s.Parent()
	trace, id := own.TraceID(), own.SpanID()
	b = appendBytes(b, spanTraceID, trace[:])
	b = appendBytes(b, spanID, id[:])
	if parent.HasSpanID() {
		above := parent.SpanID()
		b = appendBytes(b, spanParentID, above[:])
	}
	b = appendString(b, spanName, s.Name())
	b = appendVarint(b, spanKind, uint64(s.SpanKind())) // OpenTelemetry's numbers are those of OTLP.
	b = appendTime(b, spanStart, s.StartTime())
	b = appendTime(b, spanEnd, s.EndTime())
	b = appendAttributes(b, spanAttributes, s.Attributes())
	if s.Status().Code == codes.Error {
		b = appendBytes(b, spanStatus, appendVarint(nil, statusCode, statusError))
	}
	b = protowire.AppendTag(b, spanFlags, protowire.Fixed32Type)
	return protowire.AppendFixed32(b, flagsOf(uint32(own.TraceFlags()), parent.IsRemote()))
}

// Bits of SpanFlags.
const (
	flagKnowsRemote  = 0x100
	flagRemoteParent = 0x200
)

func flagsOf(flags uint32, remote bool) uint32 {
	flags |= flagKnowsRemote
	if remote {
		flags |= flagRemoteParent
	}
	return flags
}

// appendAttributes appends attributes: integers as such, and all others as strings.
func appendAttributes(b []byte, field protowire.Number, all []attribute.KeyValue) []byte {
	for _, a := range all {
		var value []byte
		if a.Value.Type() == attribute.INT64 {
			value = appendVarint(nil, valueInt, uint64(a.Value.AsInt64()))
		} else {
			value = appendString(nil, valueString, a.Value.String())
		}
		b = appendBytes(b, field, appendBytes(appendString(nil, keyValueKey, string(a.Key)), keyValueValue, value))
	}
	return b
}

func appendBytes(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func appendString(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

func appendVarint(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendTime(b []byte, field protowire.Number, t time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(t.UnixNano()))
}
