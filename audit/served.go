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
