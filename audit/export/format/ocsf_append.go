package format

// Each type is written as its struct tags say, a line for each field.

func (o *ocsf) append(b []byte) []byte {
	b = num(b, `{"activity_id":`, o.ActivityID)
	b = text(b, `,"activity_name":`, o.ActivityName)
	b = num(b, `,"category_uid":`, o.CategoryUID)
	b = text(b, `,"category_name":`, o.CategoryName)
	b = num(b, `,"class_uid":`, o.ClassUID)
	b = text(b, `,"class_name":`, o.ClassName)
	b = num(b, `,"type_uid":`, o.TypeUID)
	b = text(b, `,"type_name":`, o.TypeName)
	b = num(b, `,"severity_id":`, o.SeverityID)
	b = text(b, `,"severity":`, o.Severity)
	b = num(b, `,"time":`, o.Time)
	b = text(b, `,"message":`, o.Message)
	b = num(b, `,"status_id":`, o.StatusID)
	b = text(b, `,"status":`, o.Status)
	b = optText(b, `,"status_code":`, o.StatusCode)
	b = num(b, `,"action_id":`, o.ActionID)
	b = text(b, `,"action":`, o.Action)
	b = num(b, `,"disposition_id":`, o.DispositionID)
	b = text(b, `,"disposition":`, o.Disposition)
	b = boolean(b, `,"is_alert":`, o.IsAlert)
	b = o.Metadata.append(append(b, `,"metadata":`...))
	b = o.Actor.append(append(b, `,"actor":`...))
	b = o.API.append(append(b, `,"api":`...))
	b = o.SrcEndpoint.append(append(b, `,"src_endpoint":`...))
	b = opt(b, `,"dst_endpoint":`, o.DstEndpoint, (*ocsfEndpoint).append)
	b = opt(b, `,"policy":`, o.Policy, (*ocsfPolicy).append)
	b = opt(b, `,"ai_model":`, o.AIModel, (*ocsfModel).append)
	b = opt(b, `,"ai_agent":`, o.AIAgent, (*ocsfAgent).append)
	b = opt(b, `,"message_context":`, o.MessageCtx, (*ocsfMessage).append)
	b = optList(b, `,"attestation_list":[`, o.Attestations, (*ocsfAttestation).append)
	b = optText(b, `,"raw_data":`, o.RawData)
	b = optNum(b, `,"raw_data_size":`, o.RawSize)
	b = opt(b, `,"raw_data_hash":`, o.RawHash, (*ocsfFingerprint).append)
	b = append(append(b, `,"unmapped":{"sallyport":`...), o.Unmapped.Sallyport...)
	return append(b, "}}"...)
}

func (m *ocsfMetadata) append(b []byte) []byte {
	b = text(b, `{"version":`, m.Version)
	b = m.Product.append(append(b, `,"product":`...))
	b = texts(b, `,"profiles":`, m.Profiles)
	b = text(b, `,"uid":`, m.UID)
	b = optText(b, `,"correlation_uid":`, m.CorrelationUID)
	b = text(b, `,"event_code":`, m.EventCode)
	b = text(b, `,"log_name":`, m.LogName)
	b = text(b, `,"log_provider":`, m.LogProvider)
	b = text(b, `,"log_version":`, m.LogVersion)
	b = num(b, `,"logged_time":`, m.LoggedTime)
	b = num(b, `,"sequence":`, m.Sequence)
	b = optText(b, `,"tenant_uid":`, m.TenantUID)
	if m.IsTruncated {
		b = append(b, `,"is_truncated":true`...)
	}
	b = optNum(b, `,"untruncated_size":`, m.UntruncatedLen)
	return append(b, '}')
}

func (p *ocsfProduct) append(b []byte) []byte {
	b = text(b, `{"name":`, p.Name)
	b = text(b, `,"vendor_name":`, p.VendorName)
	b = optText(b, `,"version":`, p.Version)
	return append(b, '}')
}

func (e *ocsfEntity) append(b []byte) []byte {
	from := len(b)
	b = optText(b, `,"name":`, e.Name)
	b = optText(b, `,"uid":`, e.UID)
	return fieldsFrom(b, from)
}

func (a *ocsfActor) append(b []byte) []byte {
	from := len(b)
	b = optText(b, `,"app_name":`, a.AppName)
	b = optText(b, `,"app_uid":`, a.AppUID)
	b = optText(b, `,"invoked_by":`, a.InvokedBy)
	b = opt(b, `,"user":`, a.User, (*ocsfUser).append)
	b = opt(b, `,"session":`, a.Session, (*ocsfSession).append)
	b = optList(b, `,"authorizations":[`, a.Authorizations, (*ocsfAuthorization).append)
	return fieldsFrom(b, from)
}

func (u *ocsfUser) append(b []byte) []byte {
	b = text(b, `{"uid":`, u.UID)
	b = text(b, `,"type":`, u.Type)
	b = num(b, `,"type_id":`, u.TypeID)
	b = optText(b, `,"credential_uid":`, u.CredentialUID)
	b = opt(b, `,"org":`, u.Org, (*ocsfEntity).append)
	return append(b, '}')
}

func (s *ocsfSession) append(b []byte) []byte {
	from := len(b)
	b = optText(b, `,"issuer":`, s.Issuer)
	b = optText(b, `,"credential_uid":`, s.CredentialUID)
	b = boolean(b, `,"is_remote":`, s.IsRemote)
	return fieldsFrom(b, from)
}

func (a *ocsfAuthorization) append(b []byte) []byte {
	b = text(b, `{"decision":`, a.Decision)
	b = opt(b, `,"policy":`, a.Policy, (*ocsfPolicy).append)
	return append(b, '}')
}

func (p *ocsfPolicy) append(b []byte) []byte {
	b = text(b, `{"name":`, p.Name)
	b = optText(b, `,"uid":`, p.UID)
	b = optText(b, `,"version":`, p.Version)
	b = boolean(b, `,"is_applied":`, p.IsApplied)
	return append(b, '}')
}

func (a *ocsfAPI) append(b []byte) []byte {
	b = text(b, `{"operation":`, a.Operation)
	b = a.Service.append(append(b, `,"service":`...))
	b = text(b, `,"request":{"uid":`, a.Request.UID)
	b = append(b, '}')
	b = opt(b, `,"response":`, a.Response, (*ocsfResponse).append)
	return append(b, '}')
}

func (r *ocsfResponse) append(b []byte) []byte {
	b = num(b, `{"code":`, r.Code)
	b = optText(b, `,"error":`, r.Error)
	return append(b, '}')
}

func (e *ocsfEndpoint) append(b []byte) []byte {
	from := len(b)
	b = optText(b, `,"name":`, e.Name)
	b = optText(b, `,"uid":`, e.UID)
	b = optText(b, `,"svc_name":`, e.SvcName)
	return fieldsFrom(b, from)
}

func (m *ocsfModel) append(b []byte) []byte {
	b = text(b, `{"ai_provider":`, m.Provider)
	b = text(b, `,"name":`, m.Name)
	return append(b, '}')
}

func (a *ocsfAgent) append(b []byte) []byte {
	b = text(b, `{"name":`, a.Name)
	b = text(b, `,"uid":`, a.UID)
	b = num(b, `,"type_id":`, a.TypeID)
	b = opt(b, `,"ai_model":`, a.Model, (*ocsfModel).append)
	return append(b, '}')
}

func (m *ocsfMessage) append(b []byte) []byte {
	b = text(b, `{"uid":`, m.UID)
	b = m.Service.append(append(b, `,"service":`...))
	b = optNum(b, `,"prompt_tokens":`, m.PromptTokens)
	b = optNum(b, `,"completion_tokens":`, m.CompletionTokens)
	b = optNum(b, `,"total_tokens":`, m.TotalTokens)
	return append(b, '}')
}

func (a *ocsfAttestation) append(b []byte) []byte {
	b = text(b, `{"authority_uid":`, a.AuthorityUID)
	b = text(b, `,"chain_uid":`, a.ChainUID)
	b = a.Fingerprint.append(append(b, `,"fingerprint":`...))
	b = opt(b, `,"prev_event":`, a.PrevEvent, (*ocsfPrevious).append)
	return append(b, '}')
}

func (p *ocsfPrevious) append(b []byte) []byte {
	b = text(b, `{"uid":`, p.UID)
	b = p.Fingerprint.append(append(b, `,"fingerprint":`...))
	return append(b, '}')
}

func (f *ocsfFingerprint) append(b []byte) []byte {
	b = num(b, `{"algorithm_id":`, f.AlgorithmID)
	b = text(b, `,"algorithm":`, f.Algorithm)
	b = num(b, `,"encoding_id":`, f.EncodingID)
	b = text(b, `,"encoding":`, f.Encoding)
	b = num(b, `,"serialization_id":`, f.SerializationID)
	b = text(b, `,"serialization":`, f.Serialization)
	b = text(b, `,"value":`, f.Value)
	return append(b, '}')
}
