#!/bin/sh
# Prints what each module adds to a binary with symbols, in kB of code and data: modules.sh BINARY. Tables that the
# linker makes of all packages (types, lines, strings) are in a row of their own; memory that begins as zeros is in none.
go tool nm -size "$1" | awk -v modules="$(go version -m "$1" | awk '$1 == "dep" || $1 == "mod" { print $2 }' | xargs)" '
BEGIN { n = split(modules, module, " ") }
$3 !~ /[bBU]/ && $4 != "crypto/internal/fips140/drbg.memory" {
	of = $4 ~ /^(go:|type:|runtime\.(pclntab|types|etypes))/ ? "tables" : "standard library"
	length_of = 0
	for (i = 1; i <= n; i++) if (index($0, module[i]) && length(module[i]) > length_of) { of = module[i]; length_of = length(of) }
	size[of] += $2
}
END { for (of in size) printf "%6.0f  %s\n", size[of] / 1000, of }' | sort -rn
