package format

// Each type is written as its struct tags say, a line for each field.

func (o *ecs) append(b []byte) []byte {
	b = text(b, `{"@timestamp":`, o.Timestamp)
	b = text(b, `,"ecs":{"version":`, o.ECS.Version)
	b = text(b, `},"message":`, o.Message)
	b = o.Event.append(append(b, `,"event":`...))
	b = o.Observer.append(append(b, `,"observer":`...))
	b = opt(b, `,"organization":`, o.Organization, (*ecsID).append)
	b = opt(b, `,"user":`, o.User, (*ecsUser).append)
	b = opt(b, `,"source":`, o.Source, (*ecsEndpoint).append)
	b = opt(b, `,"destination":`, o.Destination, (*ecsEndpoint).append)
	b = opt(b, `,"rule":`, o.Rule, (*ecsRule).append)
	b = opt(b, `,"http":`, o.HTTP, (*ecsHTTP).append)
	b = opt(b, `,"gen_ai":`, o.GenAI, (*ecsGenAI).append)
	b = opt(b, `,"error":`, o.Error, (*ecsError).append)
	b = append(append(b, `,"sallyport":`...), o.Sallyport...)
	if len(o.Tags) > 0 {
		b = texts(b, `,"tags":`, o.Tags)
	}
	b = text(b, `,"log":{"logger":`, o.Log.Logger)
	return append(b, "}}"...)
}

func (e *ecsEventFields) append(b []byte) []byte {
	b = text(b, `{"kind":`, e.Kind)
	b = texts(b, `,"category":`, e.Category)
	b = texts(b, `,"type":`, e.Type)
	b = text(b, `,"outcome":`, e.Outcome)
	b = text(b, `,"action":`, e.Action)
	b = text(b, `,"id":`, e.ID)
	b = num(b, `,"sequence":`, e.Sequence)
	b = optText(b, `,"hash":`, e.Hash)
	b = text(b, `,"module":`, e.Module)
	b = text(b, `,"dataset":`, e.Dataset)
	b = text(b, `,"provider":`, e.Provider)
	b = num(b, `,"severity":`, e.Severity)
	b = optText(b, `,"reason":`, e.Reason)
	b = optNum(b, `,"duration":`, e.Duration)
	b = optText(b, `,"original":`, e.Original)
	return append(b, '}')
}

func (o *ecsObserver) append(b []byte) []byte {
	from := len(b)
	b = optText(b, `,"name":`, o.Name)
	b = text(b, `,"product":`, o.Product)
	b = text(b, `,"type":`, o.Type)
	b = optText(b, `,"version":`, o.Version)
	return fieldsFrom(b, from)
}

func (i *ecsID) append(b []byte) []byte { return append(text(b, `{"id":`, i.ID), '}') }

func (u *ecsUser) append(b []byte) []byte {
	b = text(b, `{"id":`, u.ID)
	if len(u.Roles) > 0 {
		b = texts(b, `,"roles":`, u.Roles)
	}
	return append(b, '}')
}

func (e *ecsEndpoint) append(b []byte) []byte { return append(text(b, `{"address":`, e.Address), '}') }

func (r *ecsRule) append(b []byte) []byte {
	b = text(b, `{"id":`, r.ID)
	b = optText(b, `,"version":`, r.Version)
	b = text(b, `,"ruleset":`, r.Ruleset)
	return append(b, '}')
}

func (h *ecsHTTP) append(b []byte) []byte {
	return append(num(b, `{"response":{"status_code":`, h.Response.StatusCode), "}}"...)
}

func (g *ecsGenAI) append(b []byte) []byte {
	b = append(b, `{"operation":`...)
	from := len(b)
	b = optText(b, `,"name":`, g.Operation.Name)
	b = append(fieldsFrom(b, from), `,"request":`...)
	from = len(b)
	b = optText(b, `,"model":`, g.Request.Model)
	b = append(fieldsFrom(b, from), `,"usage":`...)
	from = len(b)
	b = optNum(b, `,"input_tokens":`, g.Usage.Input)
	b = optNum(b, `,"output_tokens":`, g.Usage.Output)
	return append(fieldsFrom(b, from), '}')
}

func (e *ecsError) append(b []byte) []byte { return append(text(b, `{"code":`, e.Code), '}') }
