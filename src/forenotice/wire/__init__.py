"""The bytes that guests see: versions, documents, approvals, errors, dates, and what a VM is told of itself."""
