package blockid

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// reference holds the 64-bit outputs of the SipHash-2-4 reference
// implementation (vectors.h, vectors_sip64) for the key 00..0f and the inputs
// "", 00, 00 01, ... 00..3e, read as little-endian integers.
var reference = [64]uint64{
	0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
	0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
	0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
	0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5,
	0x3f2acc7f57c29bdb, 0x699ae9f52cbe4794, 0x4bc1b3f0968dd39c, 0xbb6dc91da77961bd,
	0xbed65cf21aa2ee98, 0xd0f2cbb02e3b67c7, 0x93536795e3a33e88, 0xa80c038ccd5ccec8,
	0xb8ad50c6f649af94, 0xbce192de8a85b8ea, 0x17d835b85bbb15f3, 0x2f2e6163076bcfad,
	0xde4daaaca71dc9a5, 0xa6a2506687956571, 0xad87a3535c49ef28, 0x32d892fad841c342,
	0x7127512f72f27cce, 0xa7f32346f95978e3, 0x12e0b01abb051238, 0x15e034d40fa197ae,
	0x314dffbe0815a3b4, 0x027990f029623981, 0xcadcd4e59ef40c4d, 0x9abfd8766a33735c,
	0x0e3ea96b5304a7d0, 0xad0c42d6fc585992, 0x187306c89bc215a9, 0xd4a60abcf3792b95,
	0xf935451de4f21df2, 0xa9538f0419755787, 0xdb9acddff56ca510, 0xd06c98cd5c0975eb,
	0xe612a3cb9ecba951, 0xc766e62cfcadaf96, 0xee64435a9752fe72, 0xa192d576b245165a,
	0x0a8787bf8ecb74b2, 0x81b3e73d20b49b6f, 0x7fa8220ba3b2ecea, 0x245731c13ca42499,
	0xb78dbfaf3a8d83bd, 0xea1ad565322a1a0b, 0x60e61c23a3795013, 0x6606d7e446282b93,
	0x6ca4ecb15c5f91e1, 0x9f626da15c9625f3, 0xe51b38608ef25f57, 0x958a324ceb064572,
}

func referenceKey() *Key {
	var k Key
	for i := range k {
		k[i] = byte(i)
	}
	return &k
}

func TestSumMatchesTheReferenceVectors(t *testing.T) {
	var in [64]byte
	for i := range in {
		in[i] = byte(i)
		if got := Sum(referenceKey(), in[:i]); got != reference[i] {
			t.Errorf("Sum of %d bytes = %#016x, want %#016x", i, got, reference[i])
		}
	}
}

// plain is the definition of Tokens, without its word tricks.
func plain(key *Key, tokens []uint32, extra []byte) uint64 {
	var p []byte
	for _, t := range tokens {
		p = binary.LittleEndian.AppendUint32(p, t)
	}
	return Sum(key, append(p, extra...))
}

func TestTokensIsSumOverLittleEndianTokensThenExtra(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	key := referenceKey()
	for n := range 70 {
		for e := range 40 {
			tokens := make([]uint32, n)
			for i := range tokens {
				tokens[i] = r.Uint32()
			}
			extra := make([]byte, e)
			for i := range extra {
				extra[i] = byte(r.Uint32())
			}
			if got, want := Tokens(key, tokens, extra), plain(key, tokens, extra); got != want {
				t.Fatalf("%d tokens, %d extra bytes: %#x, want %#x", n, e, got, want)
			}
		}
	}
}

func TestAppendCutsOnlyFullBlocks(t *testing.T) {
	key := referenceKey()
	tokens := make([]uint32, 37)
	for i := range tokens {
		tokens[i] = uint32(i * 7919)
	}
	want := []uint64{99, Tokens(key, tokens[:16], nil), Tokens(key, tokens[16:32], nil)}
	if got := Append([]uint64{99}, key, tokens, 16); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, size := range []int{0, -1, 38} {
		if got := Append(nil, key, tokens, size); len(got) != 0 {
			t.Errorf("block size %d gave %d ids", size, len(got))
		}
	}
}

func TestAppendSaysWhatTokensSaysForEverySizeAndNumberOfBlocks(t *testing.T) {
	key := referenceKey()
	r := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, 700)
	for i := range tokens {
		tokens[i] = r.Uint32()
	}
	for size := 1; size <= 128; size++ {
		for n := 0; n <= len(tokens); n += 1 + r.IntN(60) {
			var want []uint64
			for k := size; k <= n; k += size {
				want = append(want, Tokens(key, tokens[k-size:k], nil))
			}
			if got := Append(nil, key, tokens[:n], size); !slices.Equal(got, want) {
				t.Fatalf("%d tokens in blocks of %d: got %x, want %x", n, size, got, want)
			}
			if size%lane > 0 {
				continue
			}
			if got := appendPairs(nil, key, tokens[:n], size); !slices.Equal(got, want[:len(want)&^1]) {
				t.Fatalf("%d tokens in blocks of %d, two at a time: got %x, want %x", n, size, got, want)
			}
		}
	}
}

func TestIDsDependOnTheKeyAndNotOnThePosition(t *testing.T) {
	a, b := referenceKey(), &Key{1}
	block := []uint32{1, 2, 3, 4}
	if Tokens(a, block, nil) == Tokens(b, block, nil) {
		t.Error("two keys gave one id")
	}
	twice := Append(nil, a, append(slices.Clone(block), block...), 4)
	if twice[0] != twice[1] {
		t.Error("the same block has two ids")
	}
}

func TestNamespaceKeepsItsPartsApart(t *testing.T) {
	key := referenceKey()
	seen := map[uint64][3]string{}
	for _, p := range [][3]string{
		{"m", "", ""}, {"", "m", ""}, {"", "", "m"}, {"ab", "c", ""}, {"a", "bc", ""}, {"a", "b", "c"}, {"abc", "", ""}, {"", "", ""},
	} {
		ns := Namespace(key, p[0], p[1], p[2])
		if other, ok := seen[ns]; ok {
			t.Errorf("%q and %q share a namespace", p, other)
		}
		seen[ns] = p
	}
}

func TestLenPrefixFormat(t *testing.T) {
	got := LenPrefix("ab", "", "c")
	if want := []byte("\x02\x00\x00\x00ab\x00\x00\x00\x00\x01\x00\x00\x00c"); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzTokens(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), []byte("extra"))
	f.Fuzz(func(t *testing.T, raw, extra []byte) {
		var tokens []uint32
		for ; len(raw) >= 4; raw = raw[4:] {
			tokens = append(tokens, binary.LittleEndian.Uint32(raw))
		}
		if got, want := Tokens(referenceKey(), tokens, extra), plain(referenceKey(), tokens, extra); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}

func BenchmarkAppend20kTokens(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	prompts := make([][]uint32, 16)
	for i := range prompts {
		prompts[i] = make([]uint32, 20_000)
		for j := range prompts[i] {
			prompts[i][j] = r.Uint32N(150_000)
		}
	}
	key := referenceKey()
	dst := make([]uint64, 0, 1250)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		dst = Append(dst[:0], key, prompts[i%len(prompts)], 16)
		i++
	}
}

// BenchmarkLongestPrompt is the ids of 128k tokens: 8,192 blocks of 16.
func BenchmarkLongestPrompt(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 5))
	prompts := make([][]uint32, 32)
	for i := range prompts {
		prompts[i] = make([]uint32, 8192*16)
		for j := range prompts[i] {
			prompts[i][j] = r.Uint32N(150_000)
		}
	}
	dst := make([]uint64, 0, 8192)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		dst = Append(dst[:0], referenceKey(), prompts[i%len(prompts)], 16)
		i++
	}
}
