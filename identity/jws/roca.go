package jws

import "math/big"

// rocaPrimes are those by which keys of the broken generator are told: for each,
// the modulus is a power of 65537 (Nemec and others, "The Return of
// Coppersmith's Attack", 2017, §2.2).
var rocaPrimes = []int64{
	3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73,
	79, 83, 89, 97, 101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167,
}

// fromBrokenGenerator reports whether a modulus has the structure of keys whose
// factors CVE-2017-15361 makes easy to find. Of other keys one in some hundred
// million has it by chance.
func fromBrokenGenerator(modulus *big.Int) bool {
	for _, p := range rocaPrimes {
		residue := new(big.Int).Mod(modulus, big.NewInt(p)).Int64()
		if !isPower(residue, p) {
			return false
		}
	}
	return true
}

// isPower reports whether r is a power of 65537 modulo p.
func isPower(r, p int64) bool {
	for i, power := int64(0), int64(1); i < p; i, power = i+1, power*65537%p {
		if power == r {
			return true
		}
	}
	return false
}
