// Package client is compiled with the generated client by TestClient of scripts/openapi.
package client

import (
	"net/http"
	"os"
	"testing"

	"github.com/ferryrelay/ferry/scripts/openapi/generated"
)

// TestClient: the generated client plays a match's calls against a running relay.
func TestClient(t *testing.T) {
	c, err := generated.NewClientWithResponses(os.Getenv("RELAY"))
	if err != nil {
		t.Fatal(err)
	}
	regions, err := c.ListRegionsWithResponse(t.Context())
	if err != nil || regions.JSON200 == nil || len(regions.JSON200.Data.Regions) != 1 {
		t.Fatalf("regions: %v %s", err, regions.Body)
	}
	rtt := float32(20)
	chosen, err := c.ChooseRegionWithResponse(t.Context(), generated.ChooseRegionRequest{Players: []generated.PlayerMeasurements{
		{Regions: []generated.Measurement{{Region: regions.JSON200.Data.Regions[0].Id, Rtt: &rtt}}},
	}})
	if err != nil || chosen.JSON200 == nil || chosen.JSON200.Data.Region != regions.JSON200.Data.Regions[0].Id {
		t.Fatalf("choose: %v %s", err, chosen.Body)
	}
	host, err := c.AllocateWithResponse(t.Context(), generated.AllocateRequest{MaxConnections: 3})
	if err != nil || host.JSON201 == nil || len(host.JSON201.Data.Allocation.Key) != 64 {
		t.Fatalf("allocate: %v %s", err, host.Body)
	}
	id := host.JSON201.Data.Allocation.AllocationId
	code, err := c.CreateJoinCodeWithResponse(t.Context(), generated.JoinCodeRequest{AllocationId: id})
	if err != nil || code.JSON201 == nil {
		t.Fatalf("join code: %v %s", err, code.Body)
	}
	joined, err := c.JoinWithResponse(t.Context(), generated.JoinRequest{JoinCode: code.JSON201.Data.JoinCode})
	if err != nil || joined.JSON200 == nil || joined.JSON200.Data.Allocation.AllocationId == id {
		t.Fatalf("join: %v %s", err, joined.Body)
	}
	if no, err := c.JoinWithResponse(t.Context(), generated.JoinRequest{JoinCode: "6789BC"}); err != nil || no.StatusCode() != http.StatusNotFound || no.ApplicationproblemJSON404 == nil {
		t.Errorf("an unknown code: %v %s", err, no.Body)
	}
}
