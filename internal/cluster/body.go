package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"unicode/utf8"
)

// The largest bodies in bytes. A call with two names of 56 bytes, each byte of
// them escaped, has 900; a cancellation of maxBatch keys 2,300. An answer has
// 1,000 and 200 for each endpoint.
const (
	maxBody   = 4 << 10
	maxAnswer = 16 << 10
	// maxPageAnswer is for a page, which travels in base64.
	maxPageAnswer = MaxPage/3*4 + 1<<10
)

// readBody reads a whole body of a call.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, tooLarge.because("the body has more than %d bytes", maxBody)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge.because("the body has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, malformed.because("the body could not be read")
	}
	return body, nil
}

// decode reads one JSON object that has the members of v, which is a pointer to
// a struct, each once and in its own spelling, and no other. Whoever sends
// another one means what this relay does not know, and must not be served by
// half.
func decode(body []byte, v any) error {
	if !utf8.Valid(body) {
		return malformed.because("the body is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return malformed.because("not the JSON object of this call: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return malformed.because("something follows the JSON object")
	}
	return members(body, reflect.TypeOf(v).Elem())
}

// members refuses what package encoding/json is lenient about: members that are
// not there, there twice, null, or spelled in another case. The body is known
// to be one JSON value.
func members(body []byte, of reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, _ := d.Token(); t != json.Delim('{') {
		return malformed.because("not a JSON object")
	}
	seen := uint64(0)
	for d.More() {
		t, _ := d.Token()
		bit := memberBit(of, t)
		if bit == 0 || seen&bit != 0 {
			return malformed.because("%q is there twice or spelled wrongly", t)
		}
		seen |= bit
		var value json.RawMessage
		if err := d.Decode(&value); err != nil || string(value) == "null" {
			return malformed.because("%q has no value", t)
		}
	}
	if seen != 1<<of.NumField()-1 {
		return malformed.because("a member is missing")
	}
	return nil
}

// memberBit returns the bit of the field whose JSON name is exactly name, 0 if
// there is none.
func memberBit(of reflect.Type, name json.Token) uint64 {
	for i := range of.NumField() {
		if of.Field(i).Tag.Get("json") == name {
			return 1 << i
		}
	}
	return 0
}
