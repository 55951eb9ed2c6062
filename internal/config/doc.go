// Package config reads the settings of the ferry binary.
//
// It owns the rule that every setting exists once, as a field of [Config], and
// that its YAML key, its flag and its environment variable follow from that
// field:
//
//	state_dir: /srv/ferry           YAML
//	--state-dir /srv/ferry          flag
//	FERRY_STATE_DIR=/srv/ferry      environment
//
// A flag beats the environment, which beats the file, which beats the default.
// An empty environment variable counts as unset. Lists of structs, such as tokens
// and issuers, stand in the file only; a secret in them may be in a file of its
// own.
//
// Nothing is guessed: an unknown key, a key given twice, an unknown FERRY_
// variable and a value out of its range are errors that say where they stand,
// and all of them are reported at once.
package config
