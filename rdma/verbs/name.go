package verbs

// Name is the provider's name in PeerInfo and LeaseDesc.
const Name = "verbs"
