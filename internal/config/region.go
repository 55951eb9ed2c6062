package config

import "errors"

// RegionDefault is the region of a project's hosts that name none. It is written
// in the file only.
type RegionDefault struct {
	Project string `key:"project"`
	Region  string `key:"region"`
}

// resolve refuses a default of nobody, or for nowhere.
func (d *RegionDefault) resolve() error {
	if d.Project == "" || d.Region == "" {
		return errors.New("needs project and region")
	}
	return nil
}

// RegionHint is the region that is best for players of a network. It is written
// in the file only.
type RegionHint struct {
	Network Network `key:"network"`
	Region  string  `key:"region"`
}

// resolve refuses a hint about nobody, or for nowhere.
func (h *RegionHint) resolve() error {
	if !h.Network.IsValid() || h.Region == "" {
		return errors.New("needs network and region")
	}
	return nil
}
