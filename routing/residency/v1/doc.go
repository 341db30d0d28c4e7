// Package residencyv1 is generated from residency.proto, which describes the
// protocol. Start at package residency, which speaks it.
package residencyv1
