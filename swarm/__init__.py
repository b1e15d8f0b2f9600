"""The network: hivemind's DHT, daemon and matchmaking behind one door, and the averaging that ends in the same bits."""

import warnings

# hivemind compiles two helpers with torch.jit.script when it is imported; the warning is about its code, not the user's.
warnings.filterwarnings("ignore", message=".*torch.jit.script.*is deprecated.*", category=FutureWarning)
