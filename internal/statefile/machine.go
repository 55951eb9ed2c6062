package statefile

import (
	"crypto/sha256"
	"os"
)

// bootIDFile is where Linux tells a random id that it draws when it starts.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// machineRun returns a digest of the name of this run of the machine, or of
// what the kernel says if name is empty; zero where it says nothing.
func machineRun(name string) [16]byte {
	if name == "" {
		id, err := os.ReadFile(bootIDFile)
		if err != nil || len(id) == 0 {
			return [16]byte{}
		}
		name = string(id)
	}
	sum := sha256.Sum256([]byte(name))
	return [16]byte(sum[:])
}
