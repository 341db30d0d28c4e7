package test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// aviary hands out canaries: words that stand for a secret, each for one place
// where a client can put something.
type aviary struct {
	places map[string]string // by canary
}

// ssn is personal data that stands beside some canaries.
const ssn = "078-05-1120"

func newAviary() *aviary { return &aviary{places: map[string]string{ssn: "personal data"}} }

// in returns a canary for a place. Letters and digits alone: they look the same
// in JSON, URLs and headers.
func (a *aviary) in(place string) string {
	for _, known := range a.places {
		if known == place {
			panic("two canaries for " + place)
		}
	}
	c := fmt.Sprintf("Qx%016xZ", rand.Uint64())
	a.places[c] = place
	return c
}

// forms are the ways to write a canary that a search must know of: in base64 it
// depends on what stands before it.
func forms(c string) (out [][]byte) {
	out = append(out, []byte(c), []byte(hex.EncodeToString([]byte(c))), []byte(strings.ToUpper(hex.EncodeToString([]byte(c)))), []byte(strings.ToLower(c)))
	var escaped, percent strings.Builder
	for i := range len(c) {
		fmt.Fprintf(&escaped, `\u%04x`, c[i])
		fmt.Fprintf(&percent, `%%%02X`, c[i])
	}
	out = append(out, []byte(escaped.String()), []byte(percent.String()))
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			text := enc.EncodeToString(append(bytes.Repeat([]byte{'x'}, shift), c...))
			out = append(out, []byte(text[4:len(text)-4])) // what does not depend on its neighbours
		}
	}
	return out
}

// leaks are the places whose canaries stand in a text.
func (a *aviary) leaks(text []byte) (places []string) {
	for c, place := range a.places {
		for _, form := range forms(c) {
			if bytes.Contains(text, form) {
				places = append(places, place)
				break
			}
		}
	}
	return places
}

// recordedOnPurpose are the places of which the records, and what is made of
// them, say what stood there, since policy decides by it: a place that begins so.
var recordedOnPurpose = []string{"model", "tool name", "claim groups", "claim scope"}

func TestTheSearchForCanariesFindsThem(t *testing.T) {
	a := newAviary()
	c := a.in("here")
	for name, text := range map[string]string{
		"plain": "a " + c, "hex": hex.EncodeToString([]byte("secret=" + c)), "lower case": strings.ToLower(c),
		"base64": base64.StdEncoding.EncodeToString([]byte("a" + c)), "base64, later": base64.StdEncoding.EncodeToString([]byte("ab" + c + "c")),
		"base64url": base64.RawURLEncoding.EncodeToString([]byte("abc" + c)), "URL": "q=%51%78" + c[2:], "JSON": `"` + c + `"`,
	} {
		got := a.leaks([]byte(text))
		if want := name != "URL"; (len(got) == 1) != want { // half of it escaped is another word
			t.Errorf("%s: %v", name, got)
		}
	}
}

// flight is one request that carries canaries.
type flight struct {
	method, path string
	header       map[string]string
	body         []byte
	sni          string
	token        string // instead of a good one
}

// flights put a canary wherever a client can put something.
func (a *aviary) flights(token func(claims map[string]any) string) (out []flight) {
	post := func(path, body string) flight { return flight{method: http.MethodPost, path: path, body: []byte(body)} }
	add := func(f flight) { out = append(out, f) }
	user := func(place string) string { return "SSN " + ssn + ", " + a.in(place) }

	// Headers, names of hosts, paths, queries.
	for _, name := range []string{
		"User-Agent", "Cookie", "Referer", "X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Custom", "Accept", "Accept-Language", "Origin", "Via",
		"OpenAI-Organization", "OpenAI-Project", "Idempotency-Key", "X-Request-Id", "X-Stainless-Lang", "Anthropic-Version", "Anthropic-Beta",
		"Sallyport-Label", "Sallyport-Class", "Sallyport-Conversation", "Sallyport-Ticket", "Sallyport-Decision-Id", "X-Forwarded-Client-Cert",
		"Traceparent", "Tracestate", "Baggage", "B3", "Content-Type", "Content-Encoding", "Content-Language", "Expect", "If-None-Match", "Host",
		"Authorization", "X-Api-Key", "Dpop", "Proxy-Authorization",
	} {
		f := post(completions, string(chat("Hello.", false, 2)))
		value := a.in("header " + name)
		switch name {
		case "Authorization", "Proxy-Authorization", "Dpop":
			value = "Bearer " + value
		case "Tracestate", "Baggage":
			value = "k=" + value
		}
		f.header = map[string]string{name: value}
		add(f)
		add(flight{method: http.MethodGet, path: "/v1/models", header: map[string]string{name: a.in("listing, header " + name)}})
	}
	add(flight{method: http.MethodGet, path: "/v1/" + a.in("path")})
	add(flight{method: http.MethodGet, path: "/v1/models/" + a.in("path under a route")})
	add(flight{method: http.MethodGet, path: "/v1/models?q=" + a.in("query")})
	add(flight{method: http.MethodPost, path: completions + "?q=" + a.in("query of chat"), body: chat("Hello.", false, 2)})
	add(flight{method: "X" + strings.ToUpper(a.in("method"))[:6], path: completions})
	add(flight{method: http.MethodPost, path: completions, body: chat("Hello.", false, 2), sni: strings.ToLower(a.in("server name")) + ".example"})

	// Fields of each route.
	for _, stream := range []bool{false, true} {
		s := fmt.Sprintf(" (stream %t)", stream)
		add(post(completions, fmt.Sprintf(`{"model":"small","stream":%t,"max_tokens":3,"user":%q,"stop":[%q],
			"messages":[{"role":"system","content":%q},{"role":"user","name":%q,"content":[{"type":"text","text":%q}]},{"role":"assistant","content":%q},{"role":"user","content":%q}]}`,
			stream, a.in("chat user"+s), a.in("chat stop"+s), a.in("chat system"+s), a.in("chat name"+s), user("chat part"+s), a.in("chat assistant"+s), user("chat content"+s))))
	}
	add(post(completions, fmt.Sprintf(`{"model":"small","max_tokens":3,"messages":[
		{"role":"user","content":"Look it up."},
		{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"lookup","arguments":%q}}]},
		{"role":"tool","tool_call_id":%[1]q,"content":%[3]q}],
		"tools":[{"type":"function","function":{"name":"lookup","description":%[4]q,"parameters":{"type":"object","properties":{%[5]q:{"type":"string","description":%[6]q,"enum":[%[7]q]}}}}}]}`,
		a.in("tool call id"), fmt.Sprintf(`{"k":%q}`, a.in("tool arguments")), user("tool result"), a.in("tool description"), a.in("tool parameter"), a.in("tool parameter description"), a.in("tool parameter value"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":%q}}],"tool_choice":{"type":"function","function":{"name":%[1]q}}}`, a.in("tool name"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":%q,"description":%q,"schema":{"title":%q}}}}`, a.in("schema name"), a.in("schema description"), a.in("schema title"))))
	add(post(completions, fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"x"}]}`, a.in("model"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"x"}],%q:%q}`, a.in("unknown field"), a.in("unknown field's value"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":%q,"content":"x"}]}`, a.in("role"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":[{"type":%q,"text":"x"}]}]}`, a.in("part type"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://%s.example/x.png"}}]}]}`, a.in("image URL"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"x"}],"cache_salt":%q}`, a.in("cache_salt"))))
	add(post(completions, fmt.Sprintf(`{"model":"small","messages":[{"role":"user","content":"x"}],"metadata":{"k":%q}}`, a.in("chat metadata"))))
	add(post("/v1/completions", fmt.Sprintf(`{"model":"small","prompt":%q,"suffix":%q,"max_tokens":2}`, user("completions prompt"), a.in("completions suffix"))))
	add(post("/v1/completions", fmt.Sprintf(`{"model":"small","prompt":[%q],"max_tokens":2}`, user("completions prompts"))))
	add(post("/v1/embeddings", fmt.Sprintf(`{"model":"small","input":[%q],"user":%q}`, user("embeddings input"), a.in("embeddings user"))))
	add(post("/v1/responses", fmt.Sprintf(`{"model":"small","input":%q,"instructions":%q,"metadata":{"k":%q},"safety_identifier":%q,"max_output_tokens":2}`, user("responses input"), a.in("responses instructions"), a.in("responses metadata"), a.in("responses safety_identifier"))))
	add(post("/v1/responses", fmt.Sprintf(`{"model":"small","input":"x","previous_response_id":%q}`, a.in("previous_response_id"))))
	add(post("/v1/messages", fmt.Sprintf(`{"model":"small","max_tokens":2,"system":%q,"metadata":{"user_id":%q},"stop_sequences":[%q],"messages":[{"role":"user","content":%q}]}`, a.in("messages system"), a.in("messages user_id"), a.in("messages stop"), user("messages content"))))

	// Bodies that are none.
	for name, body := range map[string]string{
		"cut short": `{"model":"small","messages":[{"role":"user","content":"%s`, "no JSON": `%s`, "a key twice": `{"%[1]s":1,"%[1]s":2}`,
		"not UTF-8": "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\xff\"}]}", "control characters": "{\"model\":\"%s\n\x00\"}",
		"a number": `{"model":"small","messages":[],"max_tokens":"%s"}`, "an array": `["%s"]`, "an escape": `{"model":"\u00%s"}`,
	} {
		add(post(completions, fmt.Sprintf(body, a.in("malformed body: "+name))))
	}
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, _ = zw.Write(chat(user("compressed content"), false, 2))
	_ = zw.Close()
	add(flight{method: http.MethodPost, path: completions, body: zipped.Bytes(), header: map[string]string{"Content-Encoding": "gzip"}})

	// What the token says.
	claims := map[string]any{"sub": a.in("claim sub"), "tenant": "acme", "aud": audience}
	for _, name := range []string{"name", "email", "jti", "preferred_username", "phone_number", "custom", "sid", "acr"} {
		claims[name] = a.in("claim " + name)
	}
	claims["groups"], claims["scope"] = []string{a.in("claim groups")}, a.in("claim scope")
	f := post(completions, string(chat("Hello.", false, 2)))
	f.token = token(claims)
	add(f)
	f.token = token(map[string]any{"sub": a.in("refused claim sub"), "tenant": a.in("refused claim tenant"), "aud": a.in("refused claim aud")})
	add(f)
	return out
}

// TestNothingThatAClientSendsIsWrittenAnywhere sends a canary from each place a
// client can put something, through real processes, and looks for them in every
// file, line of output, metric, span and exported record.
func TestNothingThatAClientSendsIsWrittenAnywhere(t *testing.T) {
	o := newOverheard(t, nil)
	good := o.token(t, "alice@acme.example", "acme")
	awaitOK(t, o.client(t, nil), o.url, good)

	a := newAviary()
	statuses := make(map[int]int)
	for _, f := range a.flights(func(claims map[string]any) string {
		token, err := o.issuer.Mint(claims)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}) {
		statuses[o.fly(t, o.url, good, f)]++
	}
	t.Logf("%d canaries; answers %v", len(a.places), statuses)
	if statuses[http.StatusOK] < 20 || statuses[http.StatusBadRequest] < 10 || statuses[http.StatusUnauthorized] < 2 || statuses[http.StatusForbidden] < 2 {
		t.Errorf("the canaries did not get everywhere: %v", statuses)
	}
	o.search(t, a, recordedOnPurpose)
}

// fly sends one request over a connection of its own. What cannot be sent at all
// counts as no answer.
func (w *world) fly(t *testing.T, url, good string, f flight) int {
	t.Helper()
	client := w.client(t, func(c *tls.Config) {
		if f.sni != "" {
			c.ServerName, c.InsecureSkipVerify = f.sni, true
		}
	})
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), f.method, url+f.path, bytes.NewReader(f.body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	if f.token == "" {
		f.token = good
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	for name, value := range f.header {
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}
