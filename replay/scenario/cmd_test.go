package scenario

import "github.com/pdlog/pdlog/projector"

func finishCmd(room uint64) projector.Command { return projector.FinishRoom{Room: room} }
