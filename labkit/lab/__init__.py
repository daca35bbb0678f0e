"""From question to ledger: plan, run, record, verdict, ledger, publish."""
