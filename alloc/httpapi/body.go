package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/ferryrelay/ferry/alloc/api"
)

// MaxBody is the largest request body in bytes.
const MaxBody = 16 << 10

// readBody reads a whole body. What media type it claims does not matter.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, *api.Problem) {
	if r.ContentLength > MaxBody {
		return nil, tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		return body, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge()
	}
	return nil, invalid("the body could not be read")
}

// decode reads a JSON object. Members that v does not have are ignored.
func decode(body []byte, v any) *api.Problem {
	err := json.Unmarshal(body, v)
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return invalid("the body is not JSON")
	case wrong.Field == "":
		return invalid("the body is not a JSON object")
	}
	return invalidMember(wrong.Field, "has the wrong type")
}
