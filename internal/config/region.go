package config

import "errors"

// RegionDefault is the region of a project's hosts that name none.
type RegionDefault struct {
	Project string `key:"project" usage:"project; required"`
	Region  string `key:"region" usage:"{ID} of the region; required"`
}

// resolve refuses a default without a project or a region.
func (d *RegionDefault) resolve() error {
	if d.Project == "" || d.Region == "" {
		return errors.New("needs project and region")
	}
	return nil
}

// RegionHint is the region that is best for players of a network.
type RegionHint struct {
	Network Network `key:"network" usage:"{NETWORK} or IP of players; required"`
	Region  string  `key:"region" usage:"{ID} of the region; required"`
}

// resolve refuses a hint without a network or a region.
func (h *RegionHint) resolve() error {
	if !h.Network.IsValid() || h.Region == "" {
		return errors.New("needs network and region")
	}
	return nil
}
