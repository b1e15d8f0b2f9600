"""The network: hivemind's DHT and daemon behind one door, and how contributions, commits and bytes by digest travel."""

import warnings

# hivemind compiles two helpers with torch.jit.script when it is imported; the warning is about its code, not the user's.
warnings.filterwarnings("ignore", message=".*torch.jit.script.*is deprecated.*", category=FutureWarning)
