package oidc

import (
	"fmt"
	"testing"
)

// digestOf is a digest that falls into the first shard.
func digestOf(i int) (d [32]byte) {
	d[1], d[2] = byte(i), byte(i>>8)
	return d
}

func TestAUsedTokenOutlivesItsGeneration(t *testing.T) {
	var c cache
	const half = maxCached / cacheShards / 2
	used, idle := digestOf(1), digestOf(2)
	c.put(used, &cached{keyID: "used"})
	c.put(idle, &cached{keyID: "idle"})
	for i := range 3 * half {
		c.put(digestOf(100+i), &cached{})
		if i%(half/4) == 0 && c.get(used) == nil {
			t.Fatalf("a token in use is forgotten after %d others", i)
		}
		if n, _ := c.held(); n > 2*half {
			t.Fatalf("%d in a shard for %d", n, 2*half)
		}
	}
	if c.get(idle) != nil {
		t.Error("a token that nobody uses is remembered for ever")
	}
	c.drop(used)
	if c.get(used) != nil {
		t.Error("a dropped token is remembered")
	}
	c.put(digestOf(1), &cached{keyID: string(make([]byte, maxCachedBytes/cacheShards/2))})
	if c.get(digestOf(1)) != nil {
		t.Error("a token that takes a generation's room is remembered")
	}
}

func TestBeginningsAreToldApartUntilThereAreTooMany(t *testing.T) {
	var c cache
	for i := range maxHeads {
		c.begin(fmt.Sprint(i))
	}
	if !c.begins("0") || !c.begins(fmt.Sprint(maxHeads-1)) || c.begins("x") {
		t.Error("beginnings are not told apart")
	}
	c.begin("one more")
	if !c.begins("x") || !c.begins("0") || c.heads.seen != nil {
		t.Error("with too many to tell, not every token is looked up")
	}
	c.begin("another")
	if !c.begins("x") || c.heads.seen != nil {
		t.Error("it tells them apart again")
	}
}
