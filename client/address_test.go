package client_test

import (
	"errors"
	"testing"

	"github.com/ferryrelay/ferry/alloc/api"
	"github.com/ferryrelay/ferry/internal/test/clienttest"
)

func TestAddresses(t *testing.T) {
	t.Parallel()
	clienttest.TestAddresses(t, func(t *testing.T, url, token string) bool {
		_, err := (&api.Client{BaseURL: url, Token: token}).Join(t.Context(), "7BCDFG")
		var problem *api.Problem
		return errors.As(err, &problem)
	})
}
