// Command ferry is the one binary of Ferry, a relay for multiplayer games.
//
//	ferry demo      a whole match on this machine, with a verdict
//	ferry dev       relay and API on loopback, for a developer
//	ferry serve     relay and API for the public, on one machine
//	ferry relay     one relay of a fleet, without an API
//	ferry api       one of any number of API processes of a fleet
//	ferry check     reads a configuration as serve, relay or api does and prints it
//	ferry ctl       sees and changes what a running ferry does
//	ferry top       watches what a running relay does
//	ferry ping      measures the way to relays
//	ferry probe     is one side of a game without the game
//	ferry bench     puts load on a relay and measures it
//	ferry token     makes a player's token for development
//	ferry version   says what was built
//
// Settings come from flags, FERRY_ variables and a YAML file. Start-up prints
// one line per listener and then one that begins with "ready" to standard
// output; logs go to standard error. The exit code is 0 when all went well, 1
// when something failed, and 2 when the command line or the settings are not
// usable. The first SIGINT or SIGTERM ends the process in order, the second one
// at once; with a drain time-out, the first one begins a drain. SIGHUP lets those
// that serve read their settings again.
//
// There is one file per subcommand. What a library could offer is not here but
// in the packages above; what only this binary needs is in internal.
package main
