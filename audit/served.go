package audit

// StatusServed is the status of the record that a relay keeps of each ticket
// it served: of kind access, with a [Served] as its event.
const StatusServed = "served"

// Served is a ticket as the relay's log holds it: without the body's hash,
// which would let who reads the log confirm a guess at a prompt.
type Served struct {
	Ticket  string `json:"ticket"` // decision id
	Attempt int    `json:"attempt"`
	N       uint64 `json:"n"`
	Gateway string `json:"gateway"` // SPIFFE ID
	Log     string `json:"log"`     // origin of the log that holds the decision
	Replica string `json:"replica"`
	Epoch   string `json:"ep"`
	Op      string `json:"op"`
	Pool    string `json:"pool"`
	Model   string `json:"model"`
	Adapter string `json:"adapter"`
	Domain  string `json:"domain"`
	Rank    int    `json:"rank"`
	Exp     int64  `json:"exp"`
}

// DecodeServed parses the event of such a record in the very form that
// encoding/json gives it, as [DecodeExact] does a record.
func DecodeServed(event []byte) (*Served, bool) {
	d := &exact{b: event, s: string(event)}
	s := new(Served)
	s.Ticket = d.text(`{"ticket":`)
	s.Attempt = d.num(`,"attempt":`)
	s.N = d.uint(`,"n":`)
	s.Gateway = d.text(`,"gateway":`)
	s.Log = d.text(`,"log":`)
	s.Replica = d.text(`,"replica":`)
	s.Epoch = d.text(`,"ep":`)
	s.Op = d.text(`,"op":`)
	s.Pool = d.text(`,"pool":`)
	s.Model = d.text(`,"model":`)
	s.Adapter = d.text(`,"adapter":`)
	s.Domain = d.text(`,"domain":`)
	s.Rank = d.num(`,"rank":`)
	s.Exp = d.int(`,"exp":`)
	d.must(`}`)
	return s, !d.bad && d.i == len(d.b)
}
