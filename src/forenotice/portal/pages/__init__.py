"""The pages: each module answers the paths of one noun."""
