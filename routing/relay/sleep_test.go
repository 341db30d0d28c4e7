package relay

import "testing"

// A sleeping engine has dropped its cache, but tells of it with the first step
// after it has woken up.
func TestAnEngineThatSleepsHoldsNothing(t *testing.T) {
	c := newChaos(t, 9)
	for c.truth() == [chaosPrompts]int{} {
		c.engine.say(false, c.engine.step())
	}
	c.settles("a store")
	c.http.set(func() { c.http.asleep = true })
	clear(c.engine.copies[:])
	c.settles("the engine fell asleep")
	c.http.set(func() { c.http.asleep = false })
	for c.truth() == [chaosPrompts]int{} {
		c.engine.say(false, c.engine.step())
	}
	c.settles("the engine woke up")
}
