package policy

// Input is the question that Rego is asked; policies/schema/input.json has the
// same shape. It holds no prompt text, no time and no request id, so that the
// same input always has the same answer and a recorded one can be replayed.
type Input struct {
	V          int            `json:"v"`
	Principal  InputPrincipal `json:"principal"`
	Request    InputRequest   `json:"request"`
	Class      InputClass     `json:"class"`
	Label      InputLabel     `json:"label"`
	Exemptions []string       `json:"exemptions"`
}

// InputPrincipal is the caller as policy sees it.
type InputPrincipal struct {
	Tenant       string       `json:"tenant"`
	Subject      string       `json:"subject"`
	Kind         string       `json:"kind"`
	Method       string       `json:"method"`
	Issuer       string       `json:"issuer"`
	Groups       []string     `json:"groups"`
	Scopes       []string     `json:"scopes"`
	Chain        []InputActor `json:"chain"`
	Workload     string       `json:"workload"`
	Registration string       `json:"registration"`
	// Client is the registration of the OAuth client of a token that came over a
	// workload's own certificate, where that is another: both bind.
	Client string `json:"client_registration,omitempty"`
}

// InputActor is one link of a delegation chain: first on whose behalf all is
// done, last who acts now.
type InputActor struct {
	Type         string `json:"type"`
	Subject      string `json:"subject"`
	Registration string `json:"registration"` // empty for the first alone
}

// InputRequest is the request without its content.
type InputRequest struct {
	Operation         string   `json:"operation"` // chat.completions, models.list, …
	Model             string   `json:"model"`
	Stream            bool     `json:"stream"`
	Tools             []string `json:"tools"`
	MaxTokens         *int64   `json:"max_tokens"`
	PromptTokens      int64    `json:"prompt_tokens"`
	PromptTokensBasis string   `json:"prompt_tokens_basis"` // native, engine or estimate
	Region            string   `json:"region"`
}

// InputClass is the classification.
type InputClass struct {
	Name     string   `json:"name"`
	Facts    []string `json:"facts"`
	Mismatch bool     `json:"mismatch"`
	Table    string   `json:"table"`
}

// InputLabel is the label and why.
type InputLabel struct {
	Level      string        `json:"level"`
	Rank       int           `json:"rank"`
	Categories []string      `json:"categories"`
	Sources    []InputSource `json:"sources"`
}

// InputSource is one contribution to the label.
type InputSource struct {
	Source string `json:"source"`
	Level  string `json:"level"`
	Detail string `json:"detail"`
}

// Decision is the answer that Rego must give. Every field is required and
// checked, an unknown one denies. The zero value denies.
type Decision struct {
	Allow              bool     `json:"allow"`
	Reasons            []string `json:"reasons"`
	Pools              []string `json:"pools"`
	Strategy           string   `json:"strategy"` // probabilistic or deterministic
	Prefer             Prefer   `json:"prefer"`
	CacheDomain        string   `json:"cache_domain"` // tenant, conversation, none or public
	Inspect            Inspect  `json:"inspect"`
	ToolsAllow         []string `json:"tools_allow"` // nil: no restriction; empty: none
	Limits             Limits   `json:"limits"`
	Durability         string   `json:"durability"` // strict, strict-2 or bounded
	ExposeCachedTokens bool     `json:"expose_cached_tokens"`
	ReauthorizeS       int64    `json:"reauthorize_s"`
}

// Prefer says what to prefer among permitted replicas.
type Prefer struct {
	Region string `json:"region"`
	Warm   bool   `json:"warm"`
}

// Inspect names the inspections that each direction must pass.
type Inspect struct {
	Request  []string `json:"request"`
	Response []string `json:"response"`
}

// Limits are upper bounds that the gateway enforces in the body.
type Limits struct {
	MaxOutputTokens *int64 `json:"max_output_tokens"`
}
