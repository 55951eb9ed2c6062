package operator

// Settings is the response of /config.
type Settings struct {
	Settings []Setting `json:"settings"`
}

// Setting is a setting in force.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // YAML; secrets are hidden
	Source string `json:"source"`
	// Reloads is set if a reload changes it.
	Reloads bool `json:"reloads"`
}

// SettingChange is a setting that differs between two configurations. Secrets are hidden.
type SettingChange struct {
	Key string `json:"key"`
	Was string `json:"was"`
	Now string `json:"now"`
}

// ReloadResult is the response of /reload.
type ReloadResult struct {
	// Changed settings are in force; Restart settings need a restart.
	Changed []SettingChange `json:"changed"`
	Restart []SettingChange `json:"needs_restart"`
	// Notes name the files that were reloaded besides the settings.
	Notes []string `json:"notes"`
}

// LogLevel is the response of /log-level.
type LogLevel struct {
	Level string `json:"level"`
}

// UpgradeResult is the response of /upgrade.
type UpgradeResult struct {
	Process int `json:"process"`
}

// FlightRecorder is the response of PUT /debug/flight-recorder.
type FlightRecorder struct {
	On bool `json:"on"`
}

// FastPath is the response of /fast-path.
type FastPath struct {
	// On is set while the program relays. It may be off by request, or for a moment
	// while the network changes.
	On         bool     `json:"on"`
	OffBecause string   `json:"off_because,omitempty"`
	Mode       string   `json:"mode"` // "tc" or "native"
	Interfaces []string `json:"interfaces"`
	Datagrams  uint64   `json:"datagrams"` // relayed since the start
	// Passed are RELAYs that the program left to the sockets, by reason; NoNextHop endpoints to
	// which it does not send, by reason, since the network last changed.
	Passed    map[string]uint64 `json:"passed"`
	NoNextHop map[string]uint64 `json:"no_next_hop"`
	// FilterChanges are changes of the kernel's filters, after which each player's next datagram
	// goes to the sockets.
	FilterChanges uint64 `json:"filter_changes"`
}

// Login is the response of /console/login.
type Login struct {
	// Required: the pages require a token. SignedIn: this request may see them.
	Required bool `json:"required"`
	SignedIn bool `json:"signed_in"`
	// Role is "operator" or "viewer", and Person the name of the person that signed in by OIDC.
	Role   string `json:"role,omitempty"`
	Person string `json:"person,omitempty"`
	// OIDC is the host at which /console/oidc/begin signs in. Empty: there is none.
	OIDC string `json:"oidc,omitempty"`
}
